"""GSPO: ratio and clip of the whole sequence (Zheng et al. 2025, "Group Sequence Policy Optimization")."""

from __future__ import annotations

from typing import Unpack

from tunix_core.algorithms import (
    Algorithm,
    Normalise,
    Shared,
    clip_objective,
    group_advantages,
    policy_gradient,
    sequence_ratio,
)


def make_gspo(
    *, eps_low: float = 3e-4, eps_high: float = 4e-4, normalise: Normalise = "group", **shared: Unpack[Shared]
) -> Algorithm:
    """A as in GRPO; s = exp(mean over the sample's trained tokens of (logp − old_logp));
    l = max(−A s, −A clip(s, 1 − eps_low, 1 + eps_high)); the mean over samples.

    Args:
        eps_low, eps_high: as in GRPO, of s, which strays far less than a token's ratio.
        normalise: as in GRPO.
    """
    advantages, over_step = group_advantages(normalise)
    formula = clip_objective(eps_low, eps_high, sequence_ratio)
    return policy_gradient("algorithms/gspo", advantages, formula, aggregate="sequence", over_step=over_step, **shared)
