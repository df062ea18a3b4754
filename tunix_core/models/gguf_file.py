"""A policy out of a GGUF file: config and tokenizer from its fields, weights dequantized one at a time."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.models.config import DecoderConfig, RopeScaling, checked_dtype, lengthening
from tunix_core.models.decoder import DecoderModel
from tunix_core.models.dialogue import ChatFacts, make_chat
from tunix_core.models.families import FEATURES
from tunix_core.models.gguf_header import TensorPlace, read_header
from tunix_core.models.naming import gguf_name, is_transposed
from tunix_core.models.placement import RULES, Rules
from tunix_core.models.weights import Shape, read_weights

FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
BLOCKS_AT_ONCE = 256
FACTORS = "rope_freqs.weight"  # by what each rotary frequency is divided, where the file's model slows them


class GgufFile:
    """The fields and tensors of a GGUF file, or of all parts of one that was split ("name-00001-of-00003.gguf").

    Args:
        path: the file, or any of its parts.

    Attributes:
        where: the file, or the first of its parts.
        fields: plain values by name; those of the first part.

    Raises:
        CheckpointError: a file is none, is corrupt or cut off, or a part is missing.
        UsageError: the package `gguf` isn't installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError as error:
            raise UsageError(f"{path}: reading GGUF files takes the package gguf; pip install gguf") from error
        files = parts_of(path)
        if missing := [file for file in files if not file.is_file()]:
            raise CheckpointError(f"{path} lacks {len(missing)} of {len(files)} parts, {missing[0].name} first")
        headers = [read_header(file) for file in files]
        self.where, self.fields = files[0], headers[0].fields
        self._tensors = {name: place for header in headers for name, place in header.tensors.items()}
        self._dequantize = gguf.quants.dequantize
        self.names: Collection[str] = self._tensors.keys()
        self._check_count(len(files))

    def _check_count(self, files: int) -> None:
        parts, tensors = self.value("split.count", 1), self.value("split.tensors.count", len(self.names))
        if max(parts, 1) != files:
            raise CheckpointError(
                f"{self.where} is one of {parts} parts; expected names like x-00001-of-{parts:05}.gguf"
            )
        if tensors != len(self.names):
            raise CheckpointError(f"{self.where} and its parts have {len(self.names)} tensors, expected {tensors}")

    def value(self, name: str, default: Any = None) -> Any:
        """The content of a field, or `default` when there is none of that name."""
        return self.fields.get(name, default)

    def shape_of(self, name: str) -> Shape:
        return self._tensors[name].shape

    def read(self, name: str) -> np.ndarray:
        """float32, of `shape_of(name)`."""
        place = self._tensors[name]
        data = np.fromfile(place.file, np.uint8, place.size, offset=place.start)
        try:
            return self._dequantize(_in_long_rows(data, place), place.kind).reshape(place.shape)
        except (NotImplementedError, ValueError) as error:
            kind = place.kind.name
            raise CheckpointError(f"{self.where}: {name!r} of type {kind} can't be dequantized: {error}") from error


def parts_of(path: Path) -> list[Path]:
    """The files of which the GGUF file is one part, in order; itself when it is whole."""
    named = PART.fullmatch(path.name)
    if named is None:
        return [path]
    stem, count = named["stem"], int(named["count"])
    return [path.with_name(f"{stem}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]


def _in_long_rows(data: np.ndarray, place: TensorPlace) -> np.ndarray:
    """The bytes in rows of many blocks: the package dequantizes a few rows at a time, and blocks don't mix."""
    from gguf import GGML_QUANT_SIZES

    block = GGML_QUANT_SIZES[place.kind][1]
    return data.reshape(-1, block * gcd(place.size // block, BLOCKS_AT_ONCE)) if len(data) else data


def open_gguf(path: Path, dtype: str | None = None, *, mesh: Mesh | None = None, rules: Rules = RULES) -> Policy:
    """Opens a GGUF file; see `checkpoint.open_policy`. Its weights are float32 unless `dtype` says otherwise."""
    from tunix_core.models.gguf_tokenizer import tokenizer_from_gguf

    chosen, file = checked_dtype(dtype) or "float32", GgufFile(path)
    try:
        config = replace(_config(file), dtype=chosen)
        tokenizer = tokenizer_from_gguf(file.fields)
        chat = make_chat(tokenizer, _facts(file))
    except (UsageError, TypeError) as error:  # a TypeError: a field of a kind that nothing can be done with
        raise CheckpointError(f"{path}: {error}") from error
    model = DecoderModel(config)
    params = read_weights(
        file,
        model,
        name_of=partial(gguf_name, post_norms=config.post_norms),
        transposed=is_transposed,
        adjust=partial(_adjusted, config, file.value("general.architecture")),
        ignored=lambda name: name == FACTORS,
        mesh=mesh,
        rules=rules,
    )
    return Policy(str(path), model, params, tokenizer, chat)


def _config(file: GgufFile) -> DecoderConfig:
    named = file.value("general.architecture")
    if named not in FAMILIES:
        raise UsageError(f"unknown architecture {named!r}; known are {', '.join(FAMILIES)}")
    family = FAMILIES[named]
    ours = _Fields(file, named)
    if ours.get("expert_count", 0):
        raise UsageError(f"{named} with {ours.get('expert_count')} experts is not covered; expected a dense model")
    width, heads = ours.need("embedding_length"), ours.need("attention.head_count")
    head_dim = ours.get("attention.key_length", width // heads)
    if ours.get("rope.dimension_count", head_dim) != head_dim:
        raise UsageError(f"rotary positions on {ours.get('rope.dimension_count')} of {head_dim} sizes are not covered")
    config = DecoderConfig(
        vocab_size=_vocab_size(file),
        width=width,
        layers=ours.need("block_count"),
        heads=heads,
        kv_heads=ours.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp_width=ours.need("feed_forward_length"),
        max_positions=ours.need("context_length"),
        rope_theta=ours.get("rope.freq_base", 10_000.0),
        norm_eps=ours.need("attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in file.names,
        **FEATURES[family],
    )
    scaled = replace(config, rope_scaling=_scaling(file, ours, config))
    return _gemma(scaled, ours) if family == "gemma3_text" else scaled


class _Fields:
    """The fields of one architecture, plain numbers; a float is the shortest that float32 reads the same."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file, self._prefix = file, architecture

    def get(self, name: str, default: Any = None) -> Any:
        value = self._file.value(f"{self._prefix}.{name}", default)
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise UsageError(f"the field {self._prefix}.{name} is missing")
        return value


def _vocab_size(file: GgufFile) -> int:
    if "token_embd.weight" not in file.names:
        raise UsageError("the tensor 'token_embd.weight' is missing")
    return file.shape_of("token_embd.weight")[0]


def _scaling(file: GgufFile, ours: _Fields, config: DecoderConfig) -> RopeScaling | None:
    kind = ours.get("rope.scaling.type", "none")
    if FACTORS in file.names:
        return _llama3_scaling(file.read(FACTORS), config)
    if kind == "linear":
        return RopeScaling("linear", ours.need("rope.scaling.factor"))
    if kind == "yarn":
        return _yarn_scaling(ours)
    if kind != "none":
        raise UsageError(f"rope scaling {kind!r} is not covered; covered are linear, llama3 and yarn")
    return None


def _yarn_scaling(ours: _Fields) -> RopeScaling:
    factor = ours.need("rope.scaling.factor")
    low, high = ours.get("rope.scaling.yarn_beta_slow", 1.0), ours.get("rope.scaling.yarn_beta_fast", 32.0)
    longer = ours.get("rope.scaling.attn_factor", 1.0) * lengthening(factor)
    return RopeScaling("yarn", factor, low, high, ours.need("rope.scaling.original_context_length"), longer)


def _llama3_scaling(factors: np.ndarray, config: DecoderConfig) -> RopeScaling:
    """The scaling whose slowdown is `factors`: with the bounds Llama 3 has, the largest of them is its factor."""
    from tunix_core.models.rotary import frequencies, slowdown

    scaling = RopeScaling("llama3", float(str(np.float32(factors.max()))))
    again = np.asarray(slowdown(frequencies(config.head_dim, config.rope_theta), config.rope_theta, scaling))
    if again.shape != factors.shape or not np.allclose(again, factors, rtol=1e-3):
        raise UsageError(f"{FACTORS!r} slows rotary frequencies in another way than Llama 3 does; that is not covered")
    return scaling


def _gemma(config: DecoderConfig, ours: _Fields) -> DecoderConfig:
    # The largest, of 62 layers, alone scales queries by its width per head; no field says so.
    scalar = config.width // config.heads if config.layers == 62 else config.head_dim
    pattern = ours.get("attention.sliding_window_pattern", 6)
    return replace(
        config,
        embedding_scale=config.width**0.5,
        query_scale=scalar**-0.5,
        local_layers=tuple(i for i in range(config.layers) if (i + 1) % pattern),
        local_window=ours.need("attention.sliding_window"),
        local_rope_theta=ours.get("rope.freq_base_swa", 10_000.0),
    )


def _adjusted(config: DecoderConfig, architecture: str, path: str, tensor: np.ndarray) -> np.ndarray:
    """A tensor as the decoder wants it: halves of heads instead of pairs, scales without the 1 that was added."""
    if architecture == "llama" and path.endswith((".attention.q", ".attention.k")):
        return unpaired(tensor, config.head_dim)
    return tensor - np.float32(1) if config.centred_norms and path.endswith(".scale") else tensor


def unpaired(tensor: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows (heads * head_dim, width) of each head from (x0, y0, x1, y1, …) to (x0, x1, …, y0, y1, …)."""
    return tensor.reshape(-1, head_dim // 2, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def _facts(file: GgufFile) -> ChatFacts:
    from tunix_core.models.gguf_tokenizer import special_text

    bos, *eos = (special_text(file.fields, name) for name in ("bos", "eos", "eot"))
    return ChatFacts(file.value("tokenizer.chat_template"), bos or None, tuple(filter(None, eos)))
