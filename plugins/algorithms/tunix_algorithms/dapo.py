"""DAPO: clip-higher, token-level loss, and a penalty for length (Yu et al. 2025, "DAPO: An Open-Source LLM
Reinforcement Learning System at Scale").

Its fourth part, dynamic sampling, is the choice of what is trained, so the scheduler's: `zero_variance = "refill"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from tunix_core.algorithms import (
    Algorithm,
    Normalise,
    Outcome,
    Shared,
    UsageError,
    clip_objective,
    group_advantages,
    overlong_penalty,
    policy_gradient,
)


def make_dapo(
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    max_tokens: int | None = None,
    buffer: int = 16,
    factor: float = 1.0,
    normalise: Normalise = "group",
    **shared: Unpack[Shared],
) -> Algorithm:
    """r' = r + penalty(length); A = (r' − mean) / (std + 1e-6), std with ddof 1; l as in GRPO; mean over tokens.

    penalty: 0 up to max_tokens − buffer sampled tokens, then in a straight line to −factor at max_tokens.

    Args:
        eps_low, eps_high: as in GRPO; higher above than below, so that rare tokens may grow.
        max_tokens: the longest a sample should be, in tokens; None: no penalty.
        buffer: over how many tokens the penalty grows.
        factor: its most.
        normalise: as in GRPO.

    Raises:
        UsageError: a buffer that is not in [1, max_tokens].
    """
    if max_tokens is not None and not 1 <= buffer <= max_tokens:
        raise UsageError(f"buffer = {buffer}, expected tokens from 1 to max_tokens ({max_tokens})")

    def shaped(outcomes: Sequence[Outcome]) -> np.ndarray:
        assert max_tokens is not None
        lengths = np.array([o.tokens for o in outcomes])
        return np.array([o.score for o in outcomes]) + overlong_penalty(lengths, max_tokens, buffer, factor)

    advantages, over_step = group_advantages(normalise)
    return policy_gradient(
        "algorithms/dapo",
        advantages,
        clip_objective(eps_low, eps_high),
        scores=None if max_tokens is None else shaped,
        over_step=over_step,
        **shared,
    )
