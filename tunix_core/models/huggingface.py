"""A policy as a Hugging Face directory: config.json, safetensors in one file or in shards, tokenizer.json,
tokenizer_config.json. Nothing in it is run: no Python files, no pickles."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh
from safetensors.numpy import save_file

from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.models.config import DecoderConfig, checked_dtype
from tunix_core.models.decoder import DecoderModel
from tunix_core.models.dialogue import ChatFacts, facts_of, make_chat
from tunix_core.models.families import read_config, write_config
from tunix_core.models.naming import huggingface_name, is_transposed
from tunix_core.models.paths import flatten
from tunix_core.models.placement import RULES, Rules
from tunix_core.models.tokenizer import FastTokenizer
from tunix_core.models.weights import SafetensorsFile, ShardedSafetensors, TensorSource, read_weights

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
GENERATION, TEMPLATE = "generation_config.json", "chat_template.jinja"
SHARD_BYTES = 4_000_000_000
# In checkpoints of models for images and text, the decoder's tensors stand under one of these.
INNER = ("language_model.model.", "model.language_model.")
OTHERS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def open_huggingface(path: Path, dtype: str | None = None, *, mesh: Mesh | None = None, rules: Rules = RULES) -> Policy:
    """Opens a Hugging Face directory; see `checkpoint.open_policy`. Default dtype: its config's."""
    values = read_json(path / CONFIG)
    try:
        config = read_config(values)
    except (UsageError, TypeError, AttributeError) as error:  # the latter two: values that nothing can be done with
        raise CheckpointError(f"{path / CONFIG}: {error}") from error
    model = DecoderModel(replace(config, dtype=checked_dtype(dtype) or config.dtype))
    tokenizer = FastTokenizer.open(_present(path, TOKENIZER))
    if tokenizer.vocab_size - len(tokenizer.special) > model.vocab_size:
        raise CheckpointError(f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the model {model.vocab_size}")
    facts = _facts(path, values, tokenizer)
    try:
        chat = make_chat(tokenizer, facts)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    params = read_weights(
        source := _source(path),
        model,
        name_of=partial(_stored_name, _inner(source), config.post_norms),
        transposed=is_transposed,
        ignored=partial(_ignored, config),
        mesh=mesh,
        rules=rules,
    )
    return Policy(str(path), model, params, tokenizer, chat)


def save_huggingface(
    policy: Policy, directory: str | Path, *, dtype: str | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes a policy as a directory that `transformers` opens, one shard in memory at a time.

    Args:
        policy: its model a DecoderModel, its tokenizer a FastTokenizer.
        directory: made if it isn't there; its files of the same names are replaced.
        dtype: how weights are stored; default: as they are.
        shard_bytes: the most a file of weights holds, unless one tensor is larger.

    Raises:
        UsageError: another kind of policy, another dtype, or a decoder that is none of Hugging Face's.
    """
    model, tokenizer = policy.model, policy.tokenizer
    if not isinstance(model, DecoderModel) or not isinstance(tokenizer, FastTokenizer):
        raise UsageError(f"policy {policy.id!r}: only a DecoderModel with a FastTokenizer is saved for Hugging Face")
    stored = checked_dtype(dtype) or model.config.dtype
    config = write_config(replace(model.config, dtype=stored))
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    facts = facts_of(policy.chat, tokenizer)
    _write_json(path / CONFIG, config | _token_ids(tokenizer, facts))
    (path / TOKENIZER).write_text(tokenizer.to_json(), "utf-8")
    _write_json(path / TOKENIZER_CONFIG, _tokenizer_config(facts, model.config))
    _write_weights(path, dict(flatten(policy.params)), model.config.post_norms, np.dtype(stored), shard_bytes)


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file. Raises CheckpointError when it holds none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(value).__name__}")
    return value


# ---- reading ----
def _present(path: Path, name: str) -> Path:
    if not (path / name).is_file():
        raise CheckpointError(f"{path} lacks {name}; expected a Hugging Face directory with it")
    return path / name


def _source(path: Path) -> TensorSource:
    if (path / INDEX).is_file():
        return ShardedSafetensors(path / INDEX)
    if (path / WEIGHTS).is_file():
        return SafetensorsFile(path / WEIGHTS)
    found = next(path.glob("*.bin"), None) or next(path.glob("*.pth"), None)
    pickled = f"; {found.name} is not read, since opening a pickle may run code" if found else ""
    raise CheckpointError(f"{path} lacks {WEIGHTS} and {INDEX}{pickled}")


def _inner(source: TensorSource) -> str | None:
    return next((prefix for prefix in INNER if any(name.startswith(prefix) for name in source.names)), None)


def _stored_name(inner: str | None, post_norms: bool, path: str) -> str:
    name = huggingface_name(path, post_norms)
    return inner + name.removeprefix("model.") if inner and name.startswith("model.") else name


def _ignored(config: DecoderConfig, name: str) -> bool:
    tied = config.tie_embeddings and name.endswith("lm_head.weight")
    return tied or name.endswith("rotary_emb.inv_freq") or name.startswith(OTHERS)


def _facts(path: Path, values: Mapping[str, Any], tokenizer: FastTokenizer) -> ChatFacts:
    stated = read_json(path / TOKENIZER_CONFIG) if (path / TOKENIZER_CONFIG).is_file() else {}
    generation = read_json(path / GENERATION) if (path / GENERATION).is_file() else {}
    names = {id: name for name, id in tokenizer.special.items()}
    ids = generation.get("eos_token_id", values.get("eos_token_id"))
    by_id = [names[id] for id in (ids if isinstance(ids, list) else [ids]) if id in names]
    eos = dict.fromkeys(name for name in (_content(stated.get("eos_token")), *by_id) if name)
    return ChatFacts(_template(path, stated), _content(stated.get("bos_token")), tuple(eos))


def _template(path: Path, stated: Mapping[str, Any]) -> str | None:
    if (path / TEMPLATE).is_file():
        return (path / TEMPLATE).read_text("utf-8")
    given = stated.get("chat_template")
    if isinstance(given, list):  # several by name; "default" is the one for conversations
        given = {entry.get("name"): entry.get("template") for entry in given}.get("default")
    return given if isinstance(given, str) else None


def _content(token: Any) -> str | None:
    """The text of a token that is stated as such or as an object."""
    return token.get("content") if isinstance(token, dict) else token


# ---- writing ----
def _token_ids(tokenizer: FastTokenizer, facts: ChatFacts) -> dict[str, Any]:
    eos = [tokenizer.special[name] for name in facts.eos if name in tokenizer.special]
    ids = {"bos_token_id": tokenizer.special.get(facts.bos or ""), "eos_token_id": eos[0] if len(eos) == 1 else eos}
    return {name: id for name, id in ids.items() if id is not None and id != []}


def _tokenizer_config(facts: ChatFacts, config: DecoderConfig) -> dict[str, Any]:
    stated = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": facts.bos,
        "eos_token": facts.eos[0] if facts.eos else None,
        "chat_template": facts.template,
        "model_max_length": config.max_positions,
        "clean_up_tokenization_spaces": False,
    }
    return {name: value for name, value in stated.items() if value is not None}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _write_weights(path: Path, leaves: Mapping[str, Any], post_norms: bool, dtype: np.dtype, shard_bytes: int) -> None:
    shards = list(_planned(leaves, dtype.itemsize, shard_bytes))
    for old in (*path.glob("model*.safetensors"), path / INDEX):
        old.unlink(missing_ok=True)
    holders: dict[str, str] = {}
    for number, members in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {huggingface_name(member, post_norms): _stored(member, leaves[member], dtype) for member in members}
        save_file(tensors, path / file, metadata={"format": "pt"})
        (path / file).chmod((path / CONFIG).stat().st_mode)  # it is written for its owner alone
        holders |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        total = sum(leaf.size for leaf in leaves.values()) * dtype.itemsize
        _write_json(path / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(holders.items()))})


def _planned(leaves: Mapping[str, Any], itemsize: int, shard_bytes: int) -> Iterator[list[str]]:
    shard: list[str] = []
    used = 0
    for path, leaf in leaves.items():
        if shard and used + leaf.size * itemsize > shard_bytes:
            yield shard
            shard, used = [], 0
        shard.append(path)
        used += leaf.size * itemsize
    yield shard


def _stored(path: str, leaf: Any, dtype: np.dtype) -> np.ndarray:
    tensor = np.asarray(leaf)
    return np.array(tensor.T if is_transposed(path) else tensor, dtype, order="C")
