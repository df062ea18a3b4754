"""Weights onto a mesh of devices: logical axes by path, mesh axes by rules, one tensor at a time.

A mesh has the axes AXES_OF_MESH: copies of everything that share the batch (data), shards of the weights
that share the batch (fsdp), and shards of what a layer computes (tensor).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tunix_core.errors import UsageError
from tunix_core.models.paths import Params, unflatten

log = logging.getLogger(__name__)
AXES_OF_MESH = ("data", "fsdp", "tensor")
BATCH = ("data", "fsdp")  # the mesh axes that split a batch's rows
Array = jax.Array
Rules = Mapping[str, str | tuple[str, ...] | None]
AXES: Mapping[str, tuple[str, ...]] = {
    "embedding": ("vocab", "embed"),
    "head": ("embed", "vocab"),
    "q": ("embed", "heads"),
    "k": ("embed", "kv_heads"),
    "v": ("embed", "kv_heads"),
    "o": ("heads", "embed"),
    "q_bias": ("heads",),
    "k_bias": ("kv_heads",),
    "v_bias": ("kv_heads",),
    "gate": ("embed", "mlp"),
    "up": ("embed", "mlp"),
    "down": ("mlp", "embed"),
    "scale": ("norm",),
}
RULES: Rules = {
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "embed": "fsdp",
    "norm": None,
    "rank": None,
}


def logical_axes(path: str) -> tuple[str, ...]:
    """The name of each axis of the weight at `path`: "layers.0.attention.q" -> ("embed", "heads").

    Of an adapter: "layers.0.attention.q_lora_a" -> ("embed", "rank"), "…_lora_b" -> ("rank", "heads"). What a quantized
    weight is made of lies as it does: "layers.0.attention.q.values.scale" -> ("embed", "heads").
    """
    name, _, side = _name(path).partition("_lora_")
    rows, *columns = AXES[name]
    return {"": (rows, *columns), "a": (rows, "rank"), "b": ("rank", *columns)}[side]


def _name(path: str) -> str:
    return path.partition(".values.")[0].rpartition(".")[2]


class MeshLayout:
    """How parameters and batches lie on a mesh (contracts.Layout).

    Args:
        mesh, rules, together: as `place` takes them.
    """

    def __init__(self, mesh: Mesh, rules: Rules = RULES, together: Mapping[str, int] | None = None) -> None:
        self.mesh, self._rules, self._together = mesh, rules, together or {}
        self.whole = NamedSharding(mesh, PartitionSpec())
        over = tuple(axis for axis in BATCH if axis in mesh.shape)
        self._split, self._parts = NamedSharding(mesh, PartitionSpec(over)), math.prod(mesh.shape[a] for a in over)

    def of(self, params: Any) -> Any:
        """A sharding for each leaf, where `place` would lay it; what is no weight of a decoder is whole."""
        return jax.tree_util.tree_map_with_path(self._leaf, params)

    def rows(self, shape: tuple[int, ...]) -> NamedSharding:
        """Of a batch's array: rows over data and fsdp where these divide them, else whole."""
        return self._split if shape and shape[0] % self._parts == 0 else self.whole

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, for `jit`: what it computes on its way lies on this mesh as `spread` says."""

        @wraps(function)
        def on_mesh(*given: Any, **named: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return function(*given, **named)

        return on_mesh

    def _leaf(self, keys: tuple[Any, ...], leaf: Any) -> NamedSharding:
        path = jax.tree_util.keystr(keys, simple=True, separator=".")
        if len(AXES.get(_name(path).partition("_lora_")[0], ())) != leaf.ndim:
            return self.whole
        return sharding(path, leaf.shape, self.mesh, self._rules, self._together)


def spread(x: Array, *axes: str | None) -> Array:
    """An activation laid out: rows over data and fsdp, a logical axis as RULES say, all else whole.

    Left to itself the compiler may choose to split its width as the weights are split, and move it all for every layer.

    Args:
        x: [rows, ...], inside `MeshLayout.traced`; anywhere else it stays as it is.
        axes: the logical axis of each axis after the first, None where it is whole.
    """
    return _laid(x, (BATCH, *(RULES[axis] if axis else None for axis in axes)))


def gathered(weight: Array, *axes: str | None) -> Array:
    """A weight laid out to be read: by RULES along the axes named, whole along those that are None."""
    return _laid(weight, tuple(RULES[axis] if axis else None for axis in axes))


def _laid(x: Array, asked: Sequence[str | tuple[str, ...] | None]) -> Array:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x

    def over(names: str | tuple[str, ...] | None, size: int) -> tuple[str, ...] | None:
        used = tuple(a for a in ((names,) if isinstance(names, str) else names or ()) if a in mesh.shape)
        return used if size % math.prod(mesh.shape[a] for a in used) == 0 else None

    parts = [over(names, size) for names, size in zip(asked, x.shape, strict=True)]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*parts))


def place(
    tensors: Iterable[tuple[str, np.ndarray]],
    mesh: Mesh,
    rules: Rules = RULES,
    together: Mapping[str, int] | None = None,
) -> Params:
    """Puts weights on a mesh as they come; each is let go before the next is taken.

    Args:
        tensors: (path, tensor); an iterator that reads on demand never has two in memory.
        rules: for each logical axis the mesh axes that split it, or None. Mesh axes that `mesh` lacks are left out.
        together: how many elements of a logical axis must stay on one device (`heads`: one head's size).

    Returns:
        The nested dict of arrays. An axis that a mesh axis doesn't divide is replicated on it; that is logged.

    Raises:
        UsageError: a rule for a logical axis that no weight has.
    """
    leaves: dict[str, Any] = {}
    said: set[str] = set()
    for path, tensor in tensors:
        spec, replicated = _spec(path, tensor.shape, mesh, rules, together or {})
        for line in replicated:
            if line not in said:
                log.warning("%s; first seen at %s", line, path)
        said.update(replicated)
        leaves[path] = jax.block_until_ready(jax.device_put(tensor, NamedSharding(mesh, spec)))
        del tensor
    return unflatten(leaves)


def sharding(
    path: str, shape: tuple[int, ...], mesh: Mesh, rules: Rules = RULES, together: Mapping[str, int] | None = None
) -> NamedSharding:
    """How `place` lays the weight at `path`, of that shape, on the mesh."""
    return NamedSharding(mesh, _spec(path, shape, mesh, rules, together or {})[0])


def _spec(
    path: str, shape: tuple[int, ...], mesh: Mesh, rules: Rules, together: Mapping[str, int]
) -> tuple[PartitionSpec, list[str]]:
    """Where the weight goes, and a line for each mesh axis it is replicated on against the rules."""
    known = {axis for axes in AXES.values() for axis in axes} | {"rank"}
    if unknown := [axis for axis in rules if axis not in known]:
        raise UsageError(f"rule for {unknown[0]!r}: no weight has such an axis; known are {', '.join(sorted(known))}")
    taken: list[str] = []
    parts: list[tuple[str, ...] | str | None] = []
    replicated: list[str] = []
    for axis, size in zip(logical_axes(path), shape, strict=True):
        chosen, lines = _dividing(axis, size // together.get(axis, 1), mesh, rules, taken)
        taken += chosen
        replicated += lines
        parts.append(tuple(chosen) if len(chosen) > 1 else chosen[0] if chosen else None)
    return PartitionSpec(*parts), replicated


def _dividing(axis: str, units: int, mesh: Mesh, rules: Rules, taken: list[str]) -> tuple[list[str], list[str]]:
    """The mesh axes that split `units` evenly among those the rules name, and a line for each that doesn't."""
    asked = rules.get(axis) or ()
    chosen: list[str] = []
    lines: list[str] = []
    for name in (asked,) if isinstance(asked, str) else asked:
        if name not in mesh.shape or name in taken:
            continue
        if units % math.prod(mesh.shape[other] for other in (*chosen, name)):
            size = mesh.shape[name]
            lines.append(
                f"axis {axis!r} of {units} is replicated on mesh axis {name!r} of {size}, which doesn't divide it"
            )
        else:
            chosen.append(name)
    return chosen, lines
