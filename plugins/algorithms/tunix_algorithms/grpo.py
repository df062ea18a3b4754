"""GRPO: the clipped ratio of PPO with advantages from the group (Shao et al. 2024, "DeepSeekMath")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from tunix_core.algorithms import (
    Aggregate,
    Algorithm,
    LossTerms,
    check_aggregate,
    clipped_surrogate,
    log_ratio,
    masked_sum,
    normalised,
    ratio_metrics,
    token_weights,
)


def make_grpo(*, eps_low: float = 0.2, eps_high: float = 0.2, aggregate: Aggregate = "token") -> Algorithm:
    """A = (r − mean) / (std + 1e-6), std with ddof 1; ρ = exp(logp − old_logp);
    l = max(−A ρ, −A clip(ρ, 1 − eps_low, 1 + eps_high)).

    Args:
        eps_low: how far below 1 the ratio may pull.
        eps_high: how far above 1 the ratio may push.
        aggregate: "token" is the mean over all trained tokens; "sequence" the mean over samples of
            their token means, as the paper has it.

    Raises:
        errors.UsageError: an `aggregate` there is not.
    """
    check_aggregate(aggregate)

    def loss(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
        ratio = jnp.exp(log_ratio(logp, batch["old_logp"], batch["mask"]))
        weights = token_weights(batch, aggregate)
        numerator = masked_sum(clipped_surrogate(ratio, batch["advantages"], eps_low, eps_high), weights)
        return LossTerms(numerator, jnp.sum(weights), ratio_metrics(logp, ratio, batch, eps_low, eps_high))

    return Algorithm("algorithms/grpo", normalised, loss, idle_at_zero=True)
