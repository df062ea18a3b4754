"""CISPO, by both meanings of the name: what is clipped is the weight of a token's gradient, never the token."""

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
    policy_gradient,
    token_ratio,
)


def make_cispo(
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    aggregate: Aggregate = "token",
    normalise: Normalise = "group",
    **shared: Unpack[Shared],
) -> Algorithm:
    """A as in GRPO; ρ = exp(logp − old_logp); l = −sg(clip(ρ, 1 − eps_low, 1 + eps_high)) A logp.

    MiniMax 2025, "MiniMax-M1"; there the low side is left open: eps_low = 1.

    Args:
        eps_low, eps_high: bounds of the weight around 1.
        aggregate, normalise: as in GRPO.
    """
    advantages, over_step = group_advantages(normalise)
    return policy_gradient(
        "algorithms/cispo",
        advantages,
        lambda logp, batch: _weighted(logp, batch, 1.0 - eps_low, 1.0 + eps_high),
        aggregate=aggregate,
        over_step=over_step,
        **shared,
    )


def make_cispo_cap(
    *, cap: float = 5.0, aggregate: Aggregate = "token", normalise: Normalise = "group", **shared: Unpack[Shared]
) -> Algorithm:
    """A as in GRPO; ρ = exp(logp − old_logp); l = −sg(min(ρ, cap)) A logp.

    Khatri et al. 2025, "The Art of Scaling Reinforcement Learning Compute for LLMs".

    Args:
        cap: the largest weight.
        aggregate, normalise: as in GRPO.
    """
    advantages, over_step = group_advantages(normalise)
    return policy_gradient(
        "algorithms/cispo-cap",
        advantages,
        lambda logp, batch: _weighted(logp, batch, 0.0, cap),
        aggregate=aggregate,
        over_step=over_step,
        **shared,
    )


def _weighted(logp: Any, batch: Any, low: float, high: float) -> Objective:
    ratio = token_ratio(logp, batch)
    weights = jax.lax.stop_gradient(jnp.clip(ratio, low, high))
    return Objective(-weights * batch["advantages"] * logp, ratio, ratio < low, ratio > high)
