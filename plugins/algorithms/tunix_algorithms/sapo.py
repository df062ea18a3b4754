"""SAPO: a gate that closes smoothly in the place of a clip (Gao et al. 2025, "Soft Adaptive Policy Optimization")."""

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


def make_sapo(
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    aggregate: Aggregate = "sequence",
    normalise: Normalise = "group",
    **shared: Unpack[Shared],
) -> Algorithm:
    """A as in GRPO; ρ = exp(logp − old_logp); l = −A σ(τ (ρ − 1)) · 4 / τ, τ = tau_positive where A > 0, else
    tau_negative. At ρ = 1 its gradient is that of −A ρ.

    Args:
        tau_positive, tau_negative: how fast the gate closes.
        aggregate: as in GRPO; the paper has "sequence".
        normalise: as in GRPO.
    """

    def formula(logp: Any, batch: Any) -> Objective:
        ratio, advantages = token_ratio(logp, batch), batch["advantages"]
        tau = jnp.where(advantages > 0, tau_positive, tau_negative)
        nowhere = jnp.zeros_like(ratio, bool)
        return Objective(-advantages * jax.nn.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau, ratio, nowhere, nowhere)

    advantages, over_step = group_advantages(normalise)
    return policy_gradient("algorithms/sapo", advantages, formula, aggregate=aggregate, over_step=over_step, **shared)
