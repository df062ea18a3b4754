"""The newest weights where the engine computes, for all of its workers.

Takes a weight source; gives its parameters, placed once whoever asks first. Does not know programs.
"""

from __future__ import annotations

import threading
from typing import Any

import jax

from tunix_core.contracts import Params, Weights, WeightSource
from tunix_core.engine.layout import Layout
from tunix_core.errors import EngineError


class Parameters:
    """A weight source (contracts.WeightSource), for any thread, whose parameters all suit the same programs.

    Attributes:
        newest: what was read last.
    """

    def __init__(self, source: WeightSource, layout: Layout) -> None:
        self._source, self._layout, self._reading = source, layout, threading.Lock()
        self.newest = self._placed(source.latest())
        self._signature = _signature(self.newest.params)

    def latest(self) -> Weights:
        """The newest weights. Raises EngineError when they aren't of the first ones' structure, shapes and dtypes."""
        with self._reading:
            found = self._source.latest()
            if found.version != self.newest.version:
                self.newest = self._placed(found)
                if _signature(self.newest.params) != self._signature:
                    raise EngineError(
                        f"the weights of version {found.version} have another structure, shape or dtype than those "
                        "the engine was started with; publish parameters of the same model"
                    )
            return self.newest

    def _placed(self, weights: Weights) -> Weights:
        return Weights(weights.version, self._layout.place_params(weights.params))


def _signature(params: Params) -> Any:
    """Equal for parameters that the compiled programs take alike."""
    leaves, structure = jax.tree.flatten(params)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
