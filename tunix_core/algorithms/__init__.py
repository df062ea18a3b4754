"""Pure helpers for authors of algorithms: masked sums, ratios, clips, KL estimators, group statistics.

Does not know models, optimizers or batches beyond the arrays it is given.

Losses are sums over tokens (JAX, `[R, T]`), so that micro-batches add up; advantages are statistics
of one group's scores (NumPy, `[G]`).
"""

from __future__ import annotations

from tunix_core.algorithms.groups import centred, leave_one_out, normalised
from tunix_core.algorithms.losses import (
    Aggregate,
    check_aggregate,
    clipped_surrogate,
    k1,
    k2,
    k3,
    log_ratio,
    masked_sum,
    sequence_sum,
    sequence_sums,
    token_weights,
)
from tunix_core.algorithms.metrics import ratio_metrics
from tunix_core.contracts import Algorithm, LossTerms

__all__ = [
    "Aggregate",
    "Algorithm",
    "LossTerms",
    "centred",
    "check_aggregate",
    "clipped_surrogate",
    "k1",
    "k2",
    "k3",
    "leave_one_out",
    "log_ratio",
    "masked_sum",
    "normalised",
    "ratio_metrics",
    "sequence_sum",
    "sequence_sums",
    "token_weights",
]
