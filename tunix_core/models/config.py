"""The decoder's shape, as a checkpoint states it. Does not know JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from tunix_core.errors import UsageError

SIZES = ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "mlp_width", "max_positions")


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

    def __post_init__(self) -> None:
        for name in SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"decoder config: {name} is {value!r}, expected a whole number of at least 1")
        if self.heads % self.kv_heads:
            raise UsageError(f"decoder config: kv_heads {self.kv_heads} must divide heads {self.heads}")
        if self.head_dim % 2:
            raise UsageError(f"decoder config: head_dim {self.head_dim} must be even, for rotary positions")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config that `dataclasses.asdict` gave. Raises UsageError naming a key that is missing or unknown."""
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in values if name not in known]:
            raise UsageError(f"decoder config: unknown key {unknown[0]!r}; known are {', '.join(known)}")
        if missing := [name for name in SIZES if name not in values]:
            raise UsageError(f"decoder config: {missing[0]!r} is missing")
        return cls(**values)
