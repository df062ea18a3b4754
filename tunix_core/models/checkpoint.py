"""A policy on disk: a directory of our own, a Hugging Face directory, or a GGUF file.

Our own is config.json, model.safetensors, tokenizer.json, chat.json. Its weights are stored under their paths,
joined by dots ("layers.0.attention.q"), each (in, out). Opening runs no code from a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from safetensors.flax import save

from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.models.chat import ChatTokens, TurnChat
from tunix_core.models.config import DecoderConfig, checked_dtype
from tunix_core.models.decoder import DecoderModel
from tunix_core.models.gguf_file import open_gguf, parts_of
from tunix_core.models.huggingface import open_huggingface, save_huggingface
from tunix_core.models.paths import flatten
from tunix_core.models.placement import RULES, Rules
from tunix_core.models.tokenizer import FastTokenizer
from tunix_core.models.weights import SafetensorsFile, read_weights

ARCHITECTURE = "tunix-decoder"
CONFIG, WEIGHTS, TOKENIZER, CHAT = FILES = ("config.json", "model.safetensors", "tokenizer.json", "chat.json")


def save_policy(policy: Policy, directory: str | Path, *, dtype: str | None = None) -> None:
    """Writes a policy that `open_policy` opens: one that speaks in TurnChat as a directory of our own, another as
    a Hugging Face directory.

    Args:
        policy: one of this room's, made of a DecoderModel and a FastTokenizer.
        directory: made if it isn't there; its files of the same names are replaced.
        dtype: how weights are stored, "float32", "float16" or "bfloat16"; default: as they are.

    Raises:
        UsageError: another kind of policy, another dtype, or a decoder that no family of Hugging Face's is.
    """
    model, tokenizer, chat = policy.model, policy.tokenizer, policy.chat
    if not isinstance(model, DecoderModel) or not isinstance(tokenizer, FastTokenizer):
        given = ", ".join(type(part).__name__ for part in (model, tokenizer, chat))
        raise UsageError(f"policy {policy.id!r} is made of {given}; only DecoderModel with FastTokenizer is saved")
    if not isinstance(chat, TurnChat):
        save_huggingface(policy, directory, dtype=dtype)
        return
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = {"architecture": ARCHITECTURE, "decoder": asdict(model.config)}
    (path / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    (path / TOKENIZER).write_text(tokenizer.to_json(), "utf-8")
    (path / CHAT).write_text(chat.tokens.to_json() + "\n")
    stored = {name: jnp.asarray(leaf, checked_dtype(dtype)) for name, leaf in flatten(policy.params)}
    (path / WEIGHTS).write_bytes(save(stored))


def open_policy(
    path: str | Path, dtype: str | None = None, *, mesh: Mesh | None = None, rules: Rules = RULES
) -> Policy:
    """Opens a checkpoint, tensor by tensor.

    Args:
        path: a directory that `save_policy` wrote, a Hugging Face directory, a GGUF file (one that was
            split by any of its parts), or a directory whose one checkpoint is a GGUF file.
        dtype: of weights and computation; default: the config's, float32 for GGUF. The stored dtype doesn't matter.
        mesh: devices the weights are laid on as they are read, by the `rules`; default: the default device.

    Raises:
        CheckpointError: nothing there, a file that is missing or broken, an unknown architecture, a tensor
            that is missing, unknown, or of another shape than the config says.
        UsageError: another dtype.
    """
    found = _found(Path(path).expanduser())
    if found.is_file():
        return open_gguf(found, dtype, mesh=mesh, rules=rules)
    if _is_huggingface(found):
        return open_huggingface(found, dtype, mesh=mesh, rules=rules)
    return _open_ours(found, str(path), dtype, mesh, rules)


def _open_ours(path: Path, id: str, dtype: str | None, mesh: Mesh | None, rules: Rules) -> Policy:
    if missing := [name for name in FILES if not (path / name).is_file()]:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}; expected a directory that `tunix export` wrote")
    config = _read_config(path / CONFIG)
    model = DecoderModel(replace(config, dtype=checked_dtype(dtype)) if dtype else config)
    tokenizer = FastTokenizer.open(path / TOKENIZER)
    if tokenizer.vocab_size > model.vocab_size:
        raise CheckpointError(f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the model {model.vocab_size}")
    chat = TurnChat(tokenizer, _read_chat(path / CHAT))
    params = read_weights(SafetensorsFile(path / WEIGHTS), model, mesh=mesh, rules=rules)
    return Policy(id, model, params, tokenizer, chat)


def _found(path: Path) -> Path:
    """The directory, or the GGUF file, that `path` means."""
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise CheckpointError(f"{path} is not a directory, nor a .gguf file")
    if not path.is_dir():
        raise CheckpointError(
            f"there is nothing at {path}; expected a directory with {CONFIG}, or a .gguf file. "
            "`tunix model list` shows what can be fetched"
        )
    if (path / CONFIG).exists():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1 and files != parts_of(files[0]):
        raise CheckpointError(
            f"{path} has {len(files)} .gguf files; name one of them: {', '.join(f.name for f in files)}"
        )
    return files[0] if files else path


def _is_huggingface(path: Path) -> bool:
    if not (path / CONFIG).is_file():
        return False
    return not {"model_type", "architectures"}.isdisjoint(_json(path / CONFIG))


def _json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _read_config(path: Path) -> DecoderConfig:
    value = _json(path)
    if value.get("architecture") != ARCHITECTURE:
        given = value.get("architecture")
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
