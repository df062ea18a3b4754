"""GRPO: the clipped ratio of PPO with advantages from the group (Shao et al. 2024, "DeepSeekMath")."""

from __future__ import annotations

from typing import Unpack

from tunix_core.algorithms import (
    Aggregate,
    Algorithm,
    Normalise,
    Shared,
    clip_objective,
    group_advantages,
    policy_gradient,
)


def make_grpo(
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    aggregate: Aggregate = "token",
    normalise: Normalise = "group",
    **shared: Unpack[Shared],
) -> Algorithm:
    """A = (r − mean) / (std + 1e-6), std with ddof 1; ρ = exp(logp − old_logp);
    l = max(−A ρ, −A clip(ρ, 1 − eps_low, 1 + eps_high)).

    Args:
        eps_low: how far below 1 the ratio may pull.
        eps_high: how far above 1 the ratio may push.
        aggregate: "token" is the mean over all trained tokens; "sequence" the mean over samples of
            their token means, as the paper has it.
        normalise: what the deviation is taken over: "group", "batch", "suite", or "none".

    Raises:
        UsageError: an option's value there is not.
    """
    advantages, over_step = group_advantages(normalise)
    formula = clip_objective(eps_low, eps_high)
    return policy_gradient("algorithms/grpo", advantages, formula, aggregate=aggregate, over_step=over_step, **shared)
