"""What of a model's parameters is trained, what is frozen, and how the two make what the model computes with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tunix_core.contracts import Adapters, Params

Join = Callable[[Params, Params], Params]


@partial(jax.tree_util.register_dataclass, data_fields=("trained", "frozen"), meta_fields=("join",))
@dataclass(frozen=True, slots=True)
class Parts:
    """Parameters of one model; a pytree.

    Attributes:
        trained: has a gradient, and is what the optimizer moves.
        frozen: stays as it is.
        join: (trained, frozen) -> the parameters that the model computes with. Traced.
    """

    trained: Params
    frozen: Params
    join: Join

    @property
    def whole(self) -> Params:
        """What the model computes with."""
        return self.join(self.trained, self.frozen)

    @property
    def all_as_computed(self) -> bool:
        """Whether everything is trained, in the dtypes the model computes in."""
        computed = jax.eval_shape(lambda: self.whole)
        return not self.frozen and jax.tree.map(_dtype, computed) == jax.tree.map(_dtype, self.trained)

    def having(self, trained: Params) -> Parts:
        """The same with other trained parameters."""
        return replace(self, trained=trained)


def make_parts(params: Params, master: str, adapters: Adapters | None = None) -> Parts:
    """All parameters trained, or adapters beside them.

    Args:
        master: "float32": what is trained is kept so, and cast to its own dtype to compute with; "model": as it is.
    """
    first = params if adapters is None else adapters.first
    dtypes = jax.tree.map(_dtype, first)
    kept = first if master == "model" else jax.tree.map(lambda leaf: leaf.astype(jnp.float32), first)

    def join(trained: Params, frozen: Params) -> Params:
        own = jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), trained, dtypes)
        return own if adapters is None else adapters.join(own, frozen)

    return Parts(kept, {} if adapters is None else params, join)


def _dtype(leaf: Any) -> Any:
    return jnp.dtype(leaf.dtype)
