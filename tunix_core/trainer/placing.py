"""Where a step's arrays lie: on the default device, or on a mesh as a contracts.Layout says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tunix_core.contracts import Layout, Params

Tree = Any


@dataclass(frozen=True, slots=True)
class Placing:
    """Puts arrays where they belong, and compiles functions whose results stay there.

    Attributes:
        layout: of a mesh; None is the default device, and then nothing is moved.
    """

    layout: Layout | None = None

    def params(self, tree: Params) -> Params:
        """Parameters, or a pytree with leaves under the same names. No copy of what lies right already."""
        if self.layout is None:
            return jax.tree.map(jnp.asarray, tree)
        return jax.tree.map(put, tree, self.layout.of(tree))

    def batch(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """A batch's arrays: split by their leading axis, where that can be."""
        layout = self.layout
        if layout is None:
            return dict(arrays)
        return {name: put(array, layout.rows(np.shape(array))) for name, array in arrays.items()}

    def row_share(self, rows: int) -> int:
        """Over how many devices a batch's rows are split."""
        return 1 if self.layout is None else rows // self.layout.rows((rows,)).shard_shape((rows,))[0]

    def whole(self, tree: Tree) -> Tree:
        """Arrays that every device has all of."""
        layout = self.layout
        return tree if layout is None else jax.tree.map(lambda leaf: put(leaf, layout.whole), tree)

    def shardings(self, like_params: Params) -> Any:
        """For `jit`: how leaves under parameters' names come out; None leaves it open."""
        return None if self.layout is None else self.layout.of(like_params)

    def jit(self, function: Callable[..., Any], outputs: Callable[[Any], Any], **how: Any) -> Any:
        """`jax.jit` whose results lie as `outputs(the sharding of what is whole)` says."""
        if self.layout is None:
            return jax.jit(function, **how)
        return jax.jit(self.layout.traced(function), out_shardings=outputs(self.layout.whole), **how)

    def like(self, placed: Tree, tree: Tree) -> Tree:
        """`tree` where `placed`, of its structure, lies."""
        if self.layout is None:
            return jax.tree.map(jnp.asarray, tree)
        return jax.tree.map(lambda leaf, there: put(leaf, there.sharding), tree, placed)

    def gathered(self, tree: Tree) -> Tree:
        """On several hosts, what each can read all of; on one, `tree` itself. All hosts have to call it."""
        if self.layout is None or jax.process_count() == 1:
            return tree
        return jax.jit(lambda leaves: leaves, out_shardings=self.layout.whole)(tree)

    def optimizer(self, optimizer: optax.GradientTransformation, params: Params) -> tuple[Any, Any]:
        """(its first state, how that lies): moments as the parameters they are of, the rest everywhere."""
        if self.layout is None:
            return jax.jit(optimizer.init)(params), None
        shardings, whole = self.layout.of(params), self.layout.whole
        lies: Any = optax.tree.map_params(
            optimizer,
            lambda leaf, param, sharding: sharding if leaf.shape == param.shape else whole,
            jax.eval_shape(optimizer.init, params),
            params,
            shardings,
            transform_non_params=lambda _: whole,
        )
        return jax.jit(optimizer.init, out_shardings=lies)(params), lies


HERE = Placing()


def put(leaf: Any, sharding: Any) -> jax.Array:
    """An array with that sharding; on several hosts each gives the devices it has their part."""
    if sharding.is_fully_addressable or (isinstance(leaf, jax.Array) and leaf.sharding == sharding):
        return jax.device_put(leaf, sharding)
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])
