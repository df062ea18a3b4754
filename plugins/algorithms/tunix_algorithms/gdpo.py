"""GDPO: several rewards, each normalised apart (Liu et al. 2026, "GDPO: Group reward-Decoupled Normalization Policy
Optimization for Multi-reward RL Optimization")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Unpack

import numpy as np

from tunix_core.algorithms import (
    Aggregate,
    Algorithm,
    Outcome,
    Shared,
    UsageError,
    clip_objective,
    normalised,
    policy_gradient,
    rescaled,
)

EPSILON = 1e-4


def make_gdpo(
    *,
    weights: Mapping[str, float] | None = None,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    aggregate: Aggregate = "token",
    **shared: Unpack[Shared],
) -> Algorithm:
    """a = Σ over the score's parts of weight · (part − mean) / (std + 1e-4) in the group, std with ddof 1;
    A = (a − mean) / (std + 1e-4) over the step's samples; l as in GRPO.

    Args:
        weights: of the parts, by name; None: each of them once. A part `id.key` is within `id`, and counts
            by itself only where it is named.
        eps_low, eps_high, aggregate: as in GRPO.

    Raises:
        UsageError: at the first group, when a part that is named is not there.
    """

    def decoupled(outcomes: Sequence[Outcome]) -> np.ndarray:
        given = weights or dict.fromkeys(_whole(outcomes[0].parts), 1.0)
        return sum((w * normalised(_part(outcomes, name), EPSILON) for name, w in given.items()), np.zeros(1))

    return policy_gradient(
        "algorithms/gdpo",
        lambda scores: np.array(scores, np.float64),
        clip_objective(eps_low, eps_high),
        aggregate=aggregate,
        scores=decoupled,
        over_step=partial(rescaled, centre=True, epsilon=EPSILON),
        **shared,
    )


def _whole(parts: Mapping[str, float]) -> list[str]:
    return [name for name in parts if name.rpartition(".")[0] not in parts]


def _part(outcomes: Sequence[Outcome], name: str) -> np.ndarray:
    try:
        return np.array([o.parts[name] for o in outcomes])
    except KeyError:
        known = ", ".join(outcomes[0].parts) or "none"
        raise UsageError(f"suite {outcomes[0].suite!r}: the score has no part {name!r}; its parts: {known}") from None
