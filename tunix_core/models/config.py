"""The decoder's shape, as a checkpoint states it. Does not know JAX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from tunix_core.errors import UsageError

SIZES = ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "mlp_width", "max_positions")
DTYPES = ("float32", "float16", "bfloat16")
Activation = Literal["silu", "gelu_tanh"]
RopeKind = Literal["linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are slowed to reach more positions than a model was first trained on.

    Attributes:
        kind: "linear" slows all by `factor`; "llama3" those of long wavelength by `factor`, those of short
            wavelength not at all, and blends between; so does "yarn", blending evenly over the pairs of a head.
        factor: at least 1.
        low: a wavelength above original_positions / low is slowed whole (not "linear").
        high: one below original_positions / high is kept (not "linear"); more than `low`.
        original_positions: positions of that first training (not "linear").
        attention_factor: cosines and sines are multiplied by this ("yarn").

    Raises:
        UsageError: naming the value that can't be.
    """

    kind: RopeKind
    factor: float
    low: float = 1.0
    high: float = 4.0
    original_positions: int = 8192
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(RopeKind):
            raise UsageError(f"rope scaling {self.kind!r}: expected {' or '.join(get_args(RopeKind))}")
        if not _is_number(self.factor) or self.factor < 1:
            raise UsageError(f"rope scaling: factor is {self.factor!r}, expected a number of at least 1")
        if not (_is_number(self.low) and _is_number(self.high) and 0 < self.low < self.high):
            raise UsageError(f"rope scaling: low {self.low!r} must be over 0 and below high {self.high!r}")
        if not _is_number(self.original_positions) or self.original_positions < 1:
            raise UsageError(f"rope scaling: original_positions is {self.original_positions!r}, expected at least 1")
        if not _is_number(self.attention_factor) or self.attention_factor <= 0:
            raise UsageError(f"rope scaling: attention_factor is {self.attention_factor!r}, expected a number over 0")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What a decoder is made of.

    Attributes:
        vocab_size: rows of the embedding, columns of the output layer.
        width: size of the residual stream.
        layers: number of blocks.
        heads: query heads.
        kv_heads: key and value heads; divides `heads`.
        head_dim: size of one head; even.
        mlp_width: inner size of the gated MLP.
        max_positions: positions the model was made for.
        rope_theta: base of the rotary frequencies.
        norm_eps: added to the mean square in RMSNorm.
        tie_embeddings: the output layer is the embedding, transposed.
        dtype: of weights and activations; norms, softmax and logits are always float32.
        rope_scaling: how those frequencies are slowed, or None; local layers are never scaled when they have
            a base of their own.
        qkv_bias: queries, keys and values have biases.
        qk_norm: RMSNorm over each query's and key's head, before rotation.
        post_norms: RMSNorm after attention and after the MLP too, before each is added to the stream.
        centred_norms: a norm multiplies by 1 + its scale, instead of its scale.
        embedding_scale: embeddings are multiplied by this as they enter.
        activation: of the MLP's gate.
        query_scale: queries are multiplied by this; None is head_dim ** -0.5.
        local_layers: the blocks, from 0, in which a token attends only to the last `local_window` tokens.
        local_window: how many tokens those see, their own included; None without local layers.
        local_rope_theta: base of the rotary frequencies in local layers; None is `rope_theta`.

    Raises:
        UsageError: naming the value that can't be.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    max_positions: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = False
    dtype: str = "float32"
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    centred_norms: bool = False
    embedding_scale: float = 1.0
    activation: Activation = "silu"
    query_scale: float | None = None
    local_layers: tuple[int, ...] = ()
    local_window: int | None = None
    local_rope_theta: float | None = None

    def __post_init__(self) -> None:
        for name in SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"decoder config: {name} is {value!r}, expected a whole number of at least 1")
        if self.heads % self.kv_heads:
            raise UsageError(f"decoder config: kv_heads {self.kv_heads} must divide heads {self.heads}")
        if self.head_dim % 2:
            raise UsageError(f"decoder config: head_dim {self.head_dim} must be even, for rotary positions")
        if self.activation not in get_args(Activation):
            expected = " or ".join(get_args(Activation))
            raise UsageError(f"decoder config: activation {self.activation!r}, expected {expected}")
        for name in ("rope_theta", "norm_eps", "embedding_scale"):
            if not _is_number(getattr(self, name)) or getattr(self, name) <= 0:
                raise UsageError(f"decoder config: {name} is {getattr(self, name)!r}, expected a number over 0")
        self._check_local()

    def _check_local(self) -> None:
        if beyond := [i for i in self.local_layers if i not in range(self.layers)]:
            raise UsageError(f"decoder config: local layer {beyond[0]!r} is not one of {self.layers} layers")
        if self.local_layers and (not isinstance(self.local_window, int) or self.local_window < 1):
            raise UsageError(f"decoder config: local_window is {self.local_window!r}, expected at least 1")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config that `dataclasses.asdict` gave. Raises UsageError naming a key that is missing or unknown."""
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in values if name not in known]:
            raise UsageError(f"decoder config: unknown key {unknown[0]!r}; known are {', '.join(known)}")
        if missing := [name for name in SIZES if name not in values]:
            raise UsageError(f"decoder config: {missing[0]!r} is missing")
        given = dict(values)
        try:
            given["local_layers"] = tuple(given.get("local_layers", ()))
            scaling = given.get("rope_scaling")
            given["rope_scaling"] = RopeScaling(**scaling) if scaling else None
        except TypeError as error:
            raise UsageError(f"decoder config: {error}") from error
        return cls(**given)


def lengthening(factor: float) -> float:
    """YaRN's factor on cosines and sines for a context `factor` times as long (its equation 22)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked_dtype(dtype: str | None) -> str | None:
    """`dtype` itself. Raises UsageError when it is none of DTYPES and not None."""
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    return dtype
