"""Frozen matrices in few bits (the base of QLoRA), by Qwix.

Dettmers et al., 2023, "QLoRA: Efficient Finetuning of Quantized LLMs": each block of a column has a scale of its own.
Only what is never trained can be held so. Does not know adapters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import jax

from tunix_core.errors import UsageError
from tunix_core.models.layers import after

Kind = Literal["int8", "nf4"]
Tree = TypeVar("Tree")
BLOCK = 64  # rows that share a scale; a matrix whose rows it doesn't divide has one scale a column


@partial(jax.tree_util.register_dataclass, data_fields=("values",), meta_fields=("dtype",))
@dataclass(frozen=True, slots=True)
class Quantized:
    """A matrix in few bits; a pytree.

    Attributes:
        values: Qwix's QArray.
        dtype: that of the matrix, to compute in.
    """

    values: Any
    dtype: Any


def quantize(matrix: jax.Array, kind: Kind) -> Quantized:
    """[in, out] in 8 bits, or in the 4 of NormalFloat. Raises UsageError where Qwix isn't installed."""
    try:
        import qwix
    except ImportError as error:
        raise UsageError("trainer.lora.base needs Qwix: pip install 'tunix-core[train]'") from error
    rows = matrix.shape[0]
    block = BLOCK if rows % BLOCK == 0 else rows
    return Quantized(qwix.quantize(matrix, kind, channelwise_axes=(1,), tiled_axes={0: block}), matrix.dtype)


def opened(tree: Tree, x: jax.Array | None = None) -> Tree:
    """A pytree with each quantized matrix as what it stands for.

    Args:
        x: not before this is there; so the matrices of a layer exist while it computes, and no longer.
    """
    return jax.tree.map(lambda leaf: _open(leaf, x) if is_quantized(leaf) else leaf, tree, is_leaf=is_quantized)


def is_quantized(leaf: Any) -> bool:
    return isinstance(leaf, Quantized)


def has_quantized(tree: Any) -> bool:
    return any(map(is_quantized, jax.tree.leaves(tree, is_leaf=is_quantized)))


def _open(matrix: Quantized, x: jax.Array | None) -> jax.Array:
    import qwix

    values = matrix.values if x is None else replace(matrix.values, scale=after(matrix.values.scale, x))
    return qwix.dequantize(values).astype(matrix.dtype)
