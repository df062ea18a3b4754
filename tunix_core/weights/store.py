"""Where the trainer leaves its newest parameters. Does not know who reads them, or what they mean."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax

from tunix_core.contracts import Adapters, Layout, Params, Weights
from tunix_core.errors import UsageError


def as_it_is(params: Params) -> Params:
    """Readers compute where, and with what, the publisher does."""
    return params


def laid(layout: Layout) -> Callable[[Params], Params]:
    """Re-shards what is published as the readers need it. Nothing is copied where it lies so already.

    Args:
        layout: of the readers' mesh; it need not share a device with the publisher's.
    """
    return lambda params: jax.device_put(params, layout.of(params))


def merged(adapters: Adapters, params: Params, layout: Layout | None = None) -> Callable[[Params], Params]:
    """Takes adapters as they are published, and merges them into parameters that stay with the readers.

    Args:
        params: those beside which the adapters are trained.
        layout: as for `laid`; None: the default device.
    """
    if layout is None:
        merge = jax.jit(adapters.merge)
        return lambda published: merge(published, params)
    base, whole = jax.device_put(params, layout.of(params)), jax.eval_shape(adapters.merge, adapters.first, params)
    merge = jax.jit(adapters.merge, out_shardings=layout.of(whole))
    return lambda published: merge(jax.device_put(published, layout.of(published)), base)


class WeightStore:
    """The newest weights and their version, for any number of threads (contracts.WeightSource).

    What is published stays as it is: the publisher never mutates or donates it afterwards. The store keeps
    the newest alone; older ones live as long as somebody uses them.

    Args:
        version: the policy version of `params`, at least 0.
        params: a pytree of arrays.
        arrange: what is published -> what is read: laid on the readers' devices, adapters merged. It is called
            by the publisher, once for each publication.

    Raises:
        UsageError: the version is negative.
    """

    def __init__(self, version: int, params: Params, arrange: Callable[[Params], Params] = as_it_is) -> None:
        if version < 0:
            raise UsageError(f"weights: version {version} was given; versions count from 0")
        self._arrange = arrange
        self._latest = Weights(version, arrange(params))
        self._lock = threading.Lock()

    def publish(self, version: int, params: Params) -> None:
        """Makes `params` the newest. Raises UsageError unless `version` is above the one published last."""
        with self._lock:
            if version <= self._latest.version:
                raise UsageError(
                    f"weights: version {version} was published after version {self._latest.version}; "
                    "versions only grow, so publish a higher one"
                )
            self._latest = Weights(version, self._arrange(params))

    def latest(self) -> Weights:
        """The newest version and its parameters, always of one publication."""
        return self._latest
