"""MaxRL: towards the likelihood of success (Tajwar et al. 2026, "Maximum Likelihood Reinforcement Learning")."""

from __future__ import annotations

from typing import Unpack

from tunix_core.algorithms import Aggregate, Algorithm, Shared, clip_objective, policy_gradient, relative_to_mean


def make_max_rl(
    *, eps_low: float = 0.2, eps_high: float = 0.2, aggregate: Aggregate = "token", **shared: Unpack[Shared]
) -> Algorithm:
    """A = (r − mean) / mean, 0 where all r are equal; l as in GRPO. Scores must be at least 0.

    Args:
        eps_low, eps_high, aggregate: as in GRPO.
    """
    formula = clip_objective(eps_low, eps_high)
    return policy_gradient("algorithms/max-rl", relative_to_mean, formula, aggregate=aggregate, **shared)
