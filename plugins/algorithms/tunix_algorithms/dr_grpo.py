"""Dr. GRPO: GRPO without its two divisions (Liu et al. 2025, "Understanding R1-Zero-Like Training")."""

from __future__ import annotations

from typing import Unpack

from tunix_core.algorithms import Algorithm, Normalise, Shared, clip_objective, group_advantages, policy_gradient


def make_dr_grpo(
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    length: float = 64.0,
    normalise: Normalise = "none",
    **shared: Unpack[Shared],
) -> Algorithm:
    """A = r − mean; l as in GRPO; the loss is Σ l / (samples · length), whatever the samples' own lengths.

    Args:
        eps_low, eps_high: as in GRPO.
        length: a constant, in tokens: the budget of an episode, so that the loss has the scale of a mean.
        normalise: "batch" or "suite" divides by the deviation over the step after all; "group" is GRPO's A.
    """
    advantages, over_step = group_advantages(normalise)
    formula = clip_objective(eps_low, eps_high)
    return policy_gradient("algorithms/dr-grpo", advantages, formula, length=length, over_step=over_step, **shared)
