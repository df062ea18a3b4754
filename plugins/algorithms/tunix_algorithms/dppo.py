"""DPPO-TV: a token is held by how far its probability moved, not its ratio (Qi et al. 2026, "Rethinking the Trust
Region in LLM Reinforcement Learning")."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp

from tunix_core.algorithms import (
    Aggregate,
    Algorithm,
    Normalise,
    Objective,
    Shared,
    group_advantages,
    log_ratio,
    policy_gradient,
)


def make_dppo_tv(
    *,
    delta: float = 0.2,
    pull: float = 1e-3,
    aggregate: Aggregate = "token",
    normalise: Normalise = "group",
    **shared: Unpack[Shared],
) -> Algorithm:
    """A as in GRPO; ρ = exp(logp − behaviour_logp); p = sg(exp(logp) − exp(behaviour_logp));
    keep = not (A > 0 and p > delta, or A < 0 and p < −delta); l = −keep A ρ + pull (logp − behaviour_logp)².

    The ratio is to the behaviour, whatever `old_logp` is.

    Args:
        delta: how far the probability of a token may move; the total variation is at least that.
        pull: of the term that draws every token back, held or not.
        aggregate, normalise: as in GRPO.
    """

    def formula(logp: Any, batch: Any) -> Objective:
        behaviour, advantages = batch["behaviour_logp"], batch["advantages"]
        away = log_ratio(logp, behaviour, batch["mask"])
        ratio = jnp.exp(away)
        moved = jax.lax.stop_gradient(jnp.exp(behaviour) * jnp.expm1(away))
        low, high = (advantages < 0) & (moved < -delta), (advantages > 0) & (moved > delta)
        return Objective(jnp.where(low | high, 0.0, -advantages * ratio) + pull * jnp.square(away), ratio, low, high)

    advantages, over_step = group_advantages(normalise)
    return policy_gradient(
        "algorithms/dppo-tv",
        advantages,
        formula,
        aggregate=aggregate,
        idle_at_zero=pull == 0,
        over_step=over_step,
        **shared,
    )
