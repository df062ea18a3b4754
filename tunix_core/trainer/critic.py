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
from tunix_core.trainer.optimizer import make_optimizer, make_schedule
from tunix_core.trainer.steps import Arrays, Sum, Sums, accumulation, forward_arrays, make_update, token_values

State = tuple[Params, Any, Any]  # parameters, optimizer state, updates taken


class CriticLearner:
    """Learns as the policy does: sums over micro-batches, one update.

    Args:
        model, params: the trunk and its first weights; never written to. The head starts at 0.
        steps: of the whole run, for the schedule.
        batch: arrays of the shapes to come, with "returns" and "old_values".
    """

    def __init__(
        self, model: Model, critic: Critic, params: Params, config: TrainerConfig, steps: int, batch: Arrays
    ) -> None:
        if critic.learning_rate is not None:
            config = replace(config, learning_rate=critic.learning_rate)
        schedule = make_schedule(config, steps)
        optimizer = make_optimizer(config, schedule)
        where = (batch[name] for name in ("tokens", "positions", "seen_until"))
        width = jax.eval_shape(model.forward, params, *where).shape[-1]
        first = {"trunk": params, "head": jnp.zeros(width, jnp.float32), "bias": jnp.zeros((), jnp.float32)}
        self.state: State = first, jax.jit(optimizer.init)(first), jnp.zeros((), jnp.int32)
        self._values = jax.jit(partial(token_values, model, remat=config.remat))

        def terms(params: Params, batch: Arrays) -> LossTerms:
            return critic.loss(token_values(model, params, batch, config.remat), batch)

        zeros, self._add = accumulation(terms)
        self._sums: Sums = zeros(first, batch)
        self._update = make_update(optimizer, schedule)

    def values(self, batch: Arrays) -> np.ndarray:
        """The values of the states in which the batch's tokens were chosen: float32 [R, T]."""
        return np.asarray(self._values(self.state[0], forward_arrays(batch)))

    def add(self, batch: Arrays) -> None:
        self._sums = self._add(self._sums, self.state[0], batch)

    def update(self) -> dict[str, Sum]:
        """Takes the optimizer step; gives its metrics, "value_loss" among them."""
        params, state, taken, sums, report = self._update(*self.state, {"": self._sums}, {"": 1.0})
        self.state, self._sums = (params, state, taken), sums[""]
        return {**report.metrics[""], "value_loss": (report.numerators[""], report.denominators[""])}
