"""Advantages from the scores of one group. NumPy, float64 [G] -> float64 [G].

A sample without a score has left before. Where all scores are equal, as in a group of one, there is
nothing to be compared with: exactly 0.
"""

from __future__ import annotations

import numpy as np

from tunix_core.errors import UsageError


def centred(scores: np.ndarray) -> np.ndarray:
    """r − mean(r), as in Dr. GRPO (Liu et al. 2025, "Understanding R1-Zero-Like Training")."""
    scores = _checked(scores)
    return scores - scores.mean() if np.ptp(scores) > 0 else np.zeros_like(scores)


def normalised(scores: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """(r − mean(r)) / (std(r) + epsilon), std with ddof 1, as in GRPO (Shao et al. 2024, "DeepSeekMath")."""
    deviations = centred(scores)
    spread = np.std(scores, ddof=1) if deviations.any() else 0.0
    return deviations / (spread + epsilon)


def leave_one_out(scores: np.ndarray) -> np.ndarray:
    """r − mean of the others' r, as in RLOO (Ahmadian et al. 2024, "Back to Basics")."""
    return centred(scores) * len(scores) / max(len(scores) - 1, 1)


def relative_to_mean(scores: np.ndarray) -> np.ndarray:
    """(r − mean(r)) / mean(r), as in MaxRL (Tajwar et al. 2026, "Maximum Likelihood Reinforcement Learning").

    Raises:
        UsageError: a score is negative: what is divided by is a rate of success.
    """
    scores = _checked(scores)
    deviations = centred(scores)
    if np.min(scores) < 0:
        raise UsageError(f"scores that are divided by their mean must be at least 0; given {scores.tolist()}")
    return deviations / np.mean(scores) if deviations.any() else deviations


def overlong_penalty(lengths: np.ndarray, max_tokens: int, buffer: int, factor: float = 1.0) -> np.ndarray:
    """What a sample's length costs, float64 [G] in [−factor, 0], as in DAPO (Yu et al. 2025).

    0 up to max_tokens − buffer, then down in a straight line to −factor at `max_tokens`.

    Args:
        lengths: sampled tokens, [G]. max_tokens, buffer: in tokens; buffer >= 1.
    """
    over = np.asarray(lengths, np.float64) - (max_tokens - buffer)
    return -factor * np.clip(over / buffer, 0.0, 1.0)


def _checked(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
        raise ValueError(f"scores of one group must be finite numbers of shape [G], G >= 1; given {scores!r}")
    return scores
