"""Scales of advantages: per group, over the whole step, or over each suite of it. NumPy, float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import numpy as np

from tunix_core.algorithms.groups import centred, normalised
from tunix_core.contracts import Outcome
from tunix_core.errors import UsageError

Normalise = Literal["group", "batch", "suite", "none"]
OverStep = Callable[[Sequence[Outcome]], Sequence[Outcome]]


def group_advantages(
    normalise: Normalise, baseline: Callable[[np.ndarray], np.ndarray] = centred
) -> tuple[Callable[[np.ndarray], np.ndarray], OverStep | None]:
    """The two stages of advantages whose scale is taken over `normalise`.

    "group": (r − mean) / (std + 1e-6) of each group, whatever the baseline. "none": the baseline alone.
    "batch", "suite": the baseline in each group, then divided by the deviation over all trajectories of
    the step, or of the step and suite.

    Raises:
        UsageError: it is none of these.
    """
    if normalise not in get_args(Normalise):
        raise UsageError(f"normalise = {normalise!r}, expected one of {', '.join(get_args(Normalise))}")
    if normalise == "group":
        return normalised, None
    return baseline, None if normalise == "none" else partial(rescaled, by_suite=normalise == "suite")


def rescaled(
    outcomes: Sequence[Outcome], *, by_suite: bool = False, centre: bool = False, epsilon: float = 1e-6
) -> list[Outcome]:
    """Advantages / (std + epsilon); std with ddof 1 over trajectories, each counting once, as its mean.

    Args:
        by_suite: over the trajectories of each suite, not of the whole step.
        centre: their mean is taken away first.
    """

    def scale(members: Sequence[Outcome]) -> tuple[float, float]:
        means = np.array([np.mean(o.advantages) for o in members])
        spread = float(np.std(means, ddof=1)) if np.ptp(means) > 0 else 0.0
        return float(means.mean()) if centre else 0.0, spread + epsilon

    return _scaled(outcomes, scale, by_suite)


def whitened(outcomes: Sequence[Outcome], *, by_suite: bool = False, epsilon: float = 1e-8) -> list[Outcome]:
    """(A − mean) / sqrt(variance + epsilon) over tokens: every trajectory counts with its length; the variance
    is divided by (tokens − 1). As in REINFORCE++ (Hu 2025)."""

    def scale(members: Sequence[Outcome]) -> tuple[float, float]:
        tokens = np.concatenate([o.advantages for o in members])
        variance = float(np.var(tokens, ddof=1)) if len(tokens) > 1 else 0.0
        return float(tokens.mean()), float(np.sqrt(variance + epsilon))

    return _scaled(outcomes, scale, by_suite)


def _scaled(
    outcomes: Sequence[Outcome], scale: Callable[[Sequence[Outcome]], tuple[float, float]], by_suite: bool
) -> list[Outcome]:
    scopes = {o.suite if by_suite else "" for o in outcomes}
    scales = {scope: scale([o for o in outcomes if not by_suite or o.suite == scope]) for scope in scopes}
    found = []
    for outcome in outcomes:
        mean, spread = scales[outcome.suite if by_suite else ""]
        found.append(replace(outcome, advantages=(outcome.advantages - mean) / spread))
    return found
