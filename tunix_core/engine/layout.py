"""Where the engine's arrays lie: on one device, or on a mesh of them by the axes "data", "fsdp" and "tensor".

Slots are shared out over "data", heads of the cache over "tensor", parameters by the rules of `models.placement`.
What the host gives and takes lies on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from tunix_core.contracts import Cache, Params
from tunix_core.errors import ConfigError
from tunix_core.models import sharding

Shardings = Any
HEADS = 1  # the axis of a cache leaf that "tensor" splits; slots come first


class Layout:
    """Shardings of everything the engine keeps on its devices.

    Args:
        mesh: None: the first device.
        together: as `models.sharding` takes it.
        slots: requests decoded together.
        workers: threads that run programs there.

    Raises:
        ConfigError: the mesh can't share out the slots evenly, or it has several devices for several workers:
            programs that speak across devices must start everywhere in one order.
    """

    def __init__(self, mesh: Mesh | None, together: Mapping[str, int], *, slots: int, workers: int = 1) -> None:
        if mesh is not None and mesh.size > 1 < workers:
            raise ConfigError(
                f"engine.workers is {workers} on a mesh of {mesh.size} devices, all of which one step uses; "
                "set engine.workers = 1"
            )
        data = 1 if mesh is None else mesh.shape.get("data", 1)
        if slots % data:
            raise ConfigError(
                f"engine.slots is {slots}, which the mesh's data axis of {data} doesn't divide; choose a multiple of it"
            )
        # Anew, so that its axes are of the kind along which the compiler shares out what it isn't told of.
        self._mesh = None if mesh is None else Mesh(mesh.devices, mesh.axis_names)
        self._together = together
        self._whole = (
            SingleDeviceSharding(jax.local_devices()[0])
            if self._mesh is None
            else NamedSharding(self._mesh, PartitionSpec())
        )

    def params(self, params: Params) -> Params:
        """Abstract values of the parameters, where they lie."""
        return jax.tree.map(_abstract, params, self._of_params(params))

    def cache(self, cache: Cache) -> Cache:
        """Abstract values of the cache, where it lies."""
        return jax.tree.map(lambda leaf: _abstract(leaf, self._of_cache(leaf.shape, "data")), cache)

    def pool(self, pool: Cache) -> Cache:
        """Abstract values of the prefix cache's pool, where it lies: any slot's blocks are near it."""
        return jax.tree.map(lambda leaf: _abstract(leaf, self._of_cache(leaf.shape, None)), pool)

    def results(self, program: Callable[..., Any], donated: int, arguments: tuple[Any, ...]) -> Shardings:
        """How the program's results lie: what it consumes as before, anything else on every device."""
        kept = jax.tree.map(lambda leaf: leaf.sharding, arguments[donated])
        given = jax.eval_shape(program, *arguments)
        if jax.tree.structure(given) == jax.tree.structure(kept):
            return kept
        return kept, jax.tree.map(lambda _: self._whole, given[1])

    def whole(self, tree: Any) -> Any:
        """Abstract values of what the host gives, on every device."""
        return jax.tree.map(lambda leaf: _abstract(leaf, self._whole), tree)

    def place_params(self, params: Params) -> Params:
        """The parameters on their devices; those that lie there already are not copied."""
        return jax.device_put(params, self._of_params(params))

    def zeros(self, shapes: Any) -> Callable[[], Any]:
        """Makes zeros as `cache` and `pool` described them; compiled at its first call."""
        where = jax.tree.map(lambda leaf: leaf.sharding, shapes)
        make = lambda: jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), shapes)  # noqa: E731
        return jax.jit(make, out_shardings=where)

    def _of_params(self, params: Params) -> Shardings:
        if self._mesh is None:
            return jax.tree.map(lambda _: self._whole, params)
        mesh = self._mesh

        def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
            return sharding(".".join(str(key.key) for key in path), leaf.shape, mesh, together=self._together)

        return jax.tree_util.tree_map_with_path(of, params)

    def _of_cache(self, shape: tuple[int, ...], slots: str | None) -> Any:
        if self._mesh is None:
            return self._whole
        axes = self._mesh.shape
        heads = "tensor" if "tensor" in axes and shape[HEADS] % axes["tensor"] == 0 else None
        return NamedSharding(self._mesh, PartitionSpec(slots if slots in axes else None, heads))


def _abstract(leaf: Any, where: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
