"""A network of its own that learns the values of states: the policy's first weights and a linear head."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tunix_core.config import TrainerConfig
from tunix_core.contracts import Critic, LossTerms, Model, Params
from tunix_core.trainer.memory import bytes_of
from tunix_core.trainer.optimizer import make_stepping
from tunix_core.trainer.parts import Parts, make_parts
from tunix_core.trainer.placing import Placing
from tunix_core.trainer.steps import Arrays, Sum, Sums, accumulation, forward_arrays, token_values

State = tuple[Params, Any, Any]  # parameters, optimizer state, updates taken


class CriticLearner:
    """Learns as the policy does: sums over micro-batches, one update.

    Args:
        model, params: the trunk and its first weights; never written to. The head starts at 0.
        steps: of the whole run, for the schedule.
        batch: arrays of the shapes to come, with "returns" and "old_values".
        placing: where it computes.
    """

    def __init__(
        self,
        model: Model,
        critic: Critic,
        params: Params,
        config: TrainerConfig,
        steps: int,
        batch: Arrays,
        placing: Placing,
    ) -> None:
        if critic.learning_rate is not None:
            config = replace(config, learning_rate=critic.learning_rate)
        where = (batch[name] for name in ("tokens", "positions", "seen_until"))
        width = jax.eval_shape(model.forward, params, *where).shape[-1]
        first = {"trunk": params, "head": jnp.zeros(width, jnp.float32), "bias": jnp.zeros((), jnp.float32)}
        self._parts = make_parts(first, config.master)
        self._parts = self._parts.having(placing.params(self._parts.trained))
        (state, taken), self._update = make_stepping(config, steps, self._parts.trained, ("",), placing)
        self.state: State = self._parts.trained, state, taken
        values = partial(token_values, model, remat=config.remat)
        measure = placing.jit(lambda parts, batch: values(parts.whole, batch), lambda whole: whole)
        self._values = lambda parts, batch: measure(parts, placing.batch(batch))

        def terms(params: Params, batch: Arrays) -> LossTerms:
            return critic.loss(token_values(model, params, batch, config.remat), batch)

        zeros, self._add = accumulation(terms, self._parts, placing)
        self._sums: Sums = zeros(batch)

    def values(self, batch: Arrays) -> np.ndarray:
        """The values of the states in which the batch's tokens were chosen: float32 [R, T]."""
        return np.asarray(self._values(self._now, forward_arrays(batch)))

    def add(self, batch: Arrays) -> None:
        self._sums = self._add(self._sums, self._now, batch)

    def bytes(self) -> int:
        """What one device holds of parameters, optimizer and gradient."""
        return bytes_of((self.state, self._sums.gradient))

    def update(self) -> dict[str, Sum]:
        """Takes the optimizer step; gives its metrics, "value_loss" among them."""
        params, state, taken, sums, report = self._update(*self.state, {"": self._sums}, {"": 1.0})
        self.state, self._sums = (params, state, taken), sums[""]
        return {**report.metrics[""], "value_loss": (report.numerators[""], report.denominators[""])}

    @property
    def _now(self) -> Parts:
        return self._parts.having(self.state[0])
