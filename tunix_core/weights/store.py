"""Where the trainer leaves its newest parameters. Does not know who reads them, or what they mean."""

from __future__ import annotations

import threading

from tunix_core.contracts import Params, Weights
from tunix_core.errors import UsageError


class WeightStore:
    """The newest weights and their version, for any number of threads (contracts.WeightSource).

    What is published stays as it is: the publisher never mutates or donates it afterwards. The store keeps
    the newest alone; older ones live as long as somebody uses them.

    Args:
        version: the policy version of `params`, at least 0.
        params: a pytree of arrays.

    Raises:
        UsageError: the version is negative.
    """

    def __init__(self, version: int, params: Params) -> None:
        if version < 0:
            raise UsageError(f"weights: version {version} was given; versions count from 0")
        self._latest = Weights(version, params)
        self._lock = threading.Lock()

    def publish(self, version: int, params: Params) -> None:
        """Makes `params` the newest. Raises UsageError unless `version` is above the one published last."""
        with self._lock:
            if version <= self._latest.version:
                raise UsageError(
                    f"weights: version {version} was published after version {self._latest.version}; "
                    "versions only grow, so publish a higher one"
                )
            self._latest = Weights(version, params)

    def latest(self) -> Weights:
        """The newest version and its parameters, always of one publication."""
        return self._latest
