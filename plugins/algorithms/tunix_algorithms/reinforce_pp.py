"""REINFORCE++, without and with a group baseline (Hu 2025, "REINFORCE++: A Simple and Efficient Approach for
Aligning Large Language Models")."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack, get_args

import numpy as np

from tunix_core.algorithms import (
    Aggregate,
    Algorithm,
    Shared,
    UsageError,
    centred,
    clip_objective,
    policy_gradient,
    whitened,
)

Scope = Literal["batch", "suite"]


def make_reinforce_pp(
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    aggregate: Aggregate = "token",
    normalise: Scope = "batch",
    **shared: Unpack[Shared],
) -> Algorithm:
    """A = (r − m) / sqrt(v + 1e-8), m and v the mean and variance over all tokens of the step; l as in GRPO.

    With `kl_in = "reward"` a token's r is the score less the KL's cost from that token on. Since the
    baseline is the step's, a group of one has a signal here.

    Args:
        eps_low, eps_high, aggregate: as in GRPO.
        normalise: m and v over the "batch", or over each "suite" of it.
    """
    return policy_gradient(
        "algorithms/reinforce-pp",
        lambda scores: np.array(scores, np.float64),
        clip_objective(eps_low, eps_high),
        aggregate=aggregate,
        over_step=partial(whitened, by_suite=_by_suite(normalise)),
        cost_by_token=True,
        **shared,
    )


def make_reinforce_pp_baseline(
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    aggregate: Aggregate = "token",
    normalise: Scope = "batch",
    **shared: Unpack[Shared],
) -> Algorithm:
    """As REINFORCE++, of r − mean of its group in the place of r.

    Args:
        eps_low, eps_high, aggregate, normalise: as in REINFORCE++.
    """
    return policy_gradient(
        "algorithms/reinforce-pp-baseline",
        centred,
        clip_objective(eps_low, eps_high),
        aggregate=aggregate,
        over_step=partial(whitened, by_suite=_by_suite(normalise)),
        **shared,
    )


def _by_suite(normalise: str) -> bool:
    if normalise not in get_args(Scope):
        raise UsageError(f"normalise = {normalise!r}, expected one of {', '.join(get_args(Scope))}")
    return normalise == "suite"
