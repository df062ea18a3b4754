"""A policy as a directory: config.json, model.safetensors, tokenizer.json, chat.json.

Weights are stored under their paths, joined by dots ("layers.0.attention.q"), each (in, out).
Opening a directory runs no code from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.flax import save

from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.models.chat import ChatTokens, TurnChat
from tunix_core.models.config import DecoderConfig
from tunix_core.models.decoder import DecoderModel, Params
from tunix_core.models.tokenizer import FastTokenizer

ARCHITECTURE = "tunix-decoder"
CONFIG, WEIGHTS, TOKENIZER, CHAT = FILES = ("config.json", "model.safetensors", "tokenizer.json", "chat.json")
DTYPES = ("float32", "float16", "bfloat16")


def save_policy(policy: Policy, directory: str | Path, *, dtype: str | None = None) -> None:
    """Writes a policy that `open_policy` opens.

    Args:
        policy: one of this room's: a DecoderModel, FastTokenizer and TurnChat.
        directory: made if it isn't there; its files of the same names are replaced.
        dtype: how weights are stored, "float32", "float16" or "bfloat16"; default: as they are.

    Raises:
        UsageError: another kind of policy, or another dtype.
    """
    model, tokenizer, chat = _parts(policy)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = {"architecture": ARCHITECTURE, "decoder": asdict(model.config)}
    (path / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    (path / TOKENIZER).write_text(tokenizer.to_json(), "utf-8")
    (path / CHAT).write_text(chat.tokens.to_json() + "\n")
    stored = {name: jnp.asarray(leaf, _checked(dtype)) for name, leaf in flatten(policy.params)}
    (path / WEIGHTS).write_bytes(save(stored))


def open_policy(directory: str | Path, dtype: str | None = None) -> Policy:
    """Opens what `save_policy` wrote.

    Args:
        directory: holds the four files.
        dtype: of weights and computation; default: the config's. The stored dtype doesn't matter.

    Raises:
        CheckpointError: no such directory, a file that is missing or broken, an unknown architecture,
            a tensor that is missing, unknown, or of another shape than the config says.
        UsageError: another dtype.
    """
    path = _checked_directory(directory)
    config = _read_config(path / CONFIG)
    model = DecoderModel(replace(config, dtype=_checked(dtype)) if dtype else config)
    tokenizer = FastTokenizer.open(path / TOKENIZER)
    if tokenizer.vocab_size > model.vocab_size:
        raise CheckpointError(f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the model {model.vocab_size}")
    chat = TurnChat(tokenizer, _read_chat(path / CHAT))
    return Policy(str(directory), model, _read_weights(path / WEIGHTS, model), tokenizer, chat)


def flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with its path joined by dots, in order of the names."""
    for name, value in sorted(params.items()):
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def unflatten(leaves: Mapping[str, Any]) -> Params:
    """The nested dict whose `flatten` gives `leaves`."""
    params: Params = {}
    for path, leaf in leaves.items():
        *parents, name = path.split(".")
        place = params
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = leaf
    return params


def _parts(policy: Policy) -> tuple[DecoderModel, FastTokenizer, TurnChat]:
    model, tokenizer, chat = policy.model, policy.tokenizer, policy.chat
    if isinstance(model, DecoderModel) and isinstance(tokenizer, FastTokenizer) and isinstance(chat, TurnChat):
        return model, tokenizer, chat
    given = ", ".join(type(part).__name__ for part in (model, tokenizer, chat))
    raise UsageError(f"policy {policy.id!r} is made of {given}; only DecoderModel, FastTokenizer, TurnChat are saved")


def _checked(dtype: str | None) -> str | None:
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    return dtype


def _checked_directory(directory: str | Path) -> Path:
    path = Path(directory)
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory; expected one with {', '.join(FILES)}")
    if missing := [name for name in FILES if not (path / name).is_file()]:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}; expected a directory that `tunix export` wrote")
    return path


def _read_config(path: Path) -> DecoderConfig:
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict) or value.get("architecture") != ARCHITECTURE:
        given = value.get("architecture") if isinstance(value, dict) else None
        raise CheckpointError(f"{path}: unknown architecture {given!r}; known is {ARCHITECTURE!r}")
    if not isinstance(value.get("decoder"), dict):
        raise CheckpointError(f"{path}: expected 'decoder' to be an object with the decoder's sizes")
    try:
        return DecoderConfig.from_dict(value["decoder"])
    except UsageError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _read_chat(path: Path) -> ChatTokens:
    try:
        return ChatTokens.from_json(path.read_text("utf-8"))
    except (UsageError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _read_weights(path: Path, model: DecoderModel) -> Params:
    try:
        with safe_open(path, "flax") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is corrupt or cut off: {error}") from error
    expected = dict(flatten(model.shapes))
    if missing := [name for name in expected if name not in stored]:
        raise CheckpointError(f"{path} lacks {len(missing)} of {len(expected)} tensors, {missing[0]!r} first")
    if unknown := [name for name in stored if name not in expected]:
        raise CheckpointError(f"{path} has {len(unknown)} tensors the config doesn't speak of, {unknown[0]!r} first")
    for name, leaf in expected.items():
        if stored[name].shape != leaf.shape:
            raise CheckpointError(f"{path}: {name!r} is {_by(stored[name])}, expected {_by(leaf)} by the config")
    return unflatten({name: jnp.asarray(stored[name], leaf.dtype) for name, leaf in expected.items()})


def _by(leaf: Any) -> str:
    return "x".join(map(str, np.shape(leaf)))
