"""What a step will need of a device's memory, told before anything is compiled; and what to do when it runs out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Var, jaxprs_in_params
from jax.sharding import NamedSharding

from tunix_core.contracts import Params
from tunix_core.errors import EngineError, OutOfMemory

Tree = Any
ADVICE = (
    "trainer.rows, then trainer.row_tokens (activations), engine.slots and engine.max_context (the engine's cache); "
    "or spread the weights with mesh.trainer.fsdp, train adapters with [trainer.lora], or compute in bfloat16 "
    'with model_options = { dtype = "bfloat16" }'
)

IN_AN_UPDATE = 3  # trees of the parameters' size that an update holds besides what it takes and gives; with AdamW 2.6


def bytes_of(tree: Tree) -> int:
    """Of a pytree's arrays, or what has their shapes: what one device holds of them."""
    return sum(_shard_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _shard_bytes(leaf: Any) -> int:
    placed = getattr(leaf, "sharding", None)
    shape = placed.shard_shape(leaf.shape) if placed is not None else leaf.shape
    return math.prod(shape) * np.dtype(leaf.dtype).itemsize


def gathered_bytes(tree: Tree) -> int:
    """What one device holds of a pytree's arrays, beyond its own part, while those sharded over "fsdp" are whole."""
    return sum(_shard_bytes(leaf) * (_gathered_from(leaf) - 1) for leaf in jax.tree.leaves(tree))


def _gathered_from(leaf: Any) -> int:
    placed = getattr(leaf, "sharding", None)
    if not isinstance(placed, NamedSharding):
        return 1
    axes = {axis for entry in placed.spec for axis in ((entry,) if isinstance(entry, str) else entry or ())}
    return placed.mesh.shape["fsdp"] if "fsdp" in axes else 1


def step_bytes(function: Callable[[Params], Any], params: Params) -> tuple[int, int]:
    """What the gradient of a function keeps from forward to backward, and the largest array it makes, in bytes.

    Counted from shapes alone, for one device; nothing is compiled. What is kept but was there before, parameters and
    what the function closes over, doesn't count. An upper bound: what the compiler fuses away is counted, what it
    frees early too, and what a branch or a loop hands on.

    Args:
        function: parameters -> a scalar.
        params: pytree of arrays, or of what has their shapes.
    """
    traced = jax.make_jaxpr(lambda p: jax.vjp(function, p))(params).jaxpr
    given = {*traced.invars, *traced.constvars}
    kept = {each for each in traced.outvars if isinstance(each, Var)} - given
    return sum(_bytes(each.aval) for each in kept), max(map(_bytes, _made(traced)), default=0)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize if isinstance(aval, ShapedArray) else 0


def _made(jaxpr: Any) -> Iterator[Any]:
    """The shapes of everything a program makes, inner programs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from _made(inner)


def device_bytes() -> int | None:
    """What the first device has in all; None where nobody says. A CPU has the machine's memory."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (device.memory_stats() or {}).get("bytes_limit")


def memory_line(needs: Mapping[str, int], room: int | None) -> str:
    """One line: each part that a device will hold, their sum, and what the device has."""
    parts = ", ".join(f"{name} {_size(count)}" for name, count in needs.items() if count)
    total = sum(needs.values())
    has = f" of {_size(room)}" if room else ""
    over = f" That is more than there is; lower {ADVICE}." if room and total > room else ""
    return f"memory of a device, about: {parts}; {_size(total)}{has} in all.{over}"


@contextmanager
def advised(needs: Mapping[str, int]) -> Iterator[None]:
    """Says which settings to lower where the trainer's or the engine's device runs out of memory inside.

    Raises:
        OutOfMemory: with the largest parts of the estimate.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, EngineError) as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        largest = sorted(needs.items(), key=lambda part: -part[1])[:3]
        told = f" Estimated were {', '.join(f'{name} {_size(count)}' for name, count in largest)}." if needs else ""
        text = str(error).splitlines()[0]
        raise OutOfMemory(f"a device is out of memory: {text}.{told} Lower {ADVICE}.") from error


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
