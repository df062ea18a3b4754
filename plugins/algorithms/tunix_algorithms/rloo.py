"""RLOO: REINFORCE with the others of the group as baseline (Ahmadian et al. 2024, "Back to Basics")."""

from __future__ import annotations

from typing import Unpack

from tunix_core.algorithms import (
    Aggregate,
    Algorithm,
    Normalise,
    Shared,
    group_advantages,
    leave_one_out,
    policy_gradient,
    ratio_objective,
)


def make_rloo(*, aggregate: Aggregate = "token", normalise: Normalise = "none", **shared: Unpack[Shared]) -> Algorithm:
    """A = r − mean of the others' r; ρ = exp(logp − old_logp); l = −A ρ.

    At ρ = 1 its gradient is that of REINFORCE, −A ∇logp; ρ corrects for tokens of an older policy.

    Args:
        aggregate: as in GRPO.
        normalise: "batch" or "suite" divides A by its deviation over the step.
    """
    advantages, over_step = group_advantages(normalise, leave_one_out)
    return policy_gradient(
        "algorithms/rloo", advantages, ratio_objective, aggregate=aggregate, over_step=over_step, **shared
    )
