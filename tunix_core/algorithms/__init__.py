"""What algorithms are made of: `policy_gradient`, and below it masked sums, ratios, KL estimators, statistics.

Does not know models, optimizers or batches beyond the arrays it is given.

Losses are sums over tokens (JAX, `[R, T]`), so that micro-batches add up; advantages are statistics
of one group's scores (NumPy, `[G]`), or of all the step's outcomes.
"""

from __future__ import annotations

from tunix_core.algorithms.corrections import CORRECTIONS, Corrections, check_corrections, correct
from tunix_core.algorithms.groups import centred, leave_one_out, normalised, overlong_penalty, relative_to_mean
from tunix_core.algorithms.losses import (
    Aggregate,
    check_aggregate,
    clipped_surrogate,
    k1,
    k2,
    k3,
    log_ratio,
    masked_sum,
    sequence_means,
    sequence_ratio,
    sequence_sum,
    sequence_sums,
    token_ratio,
    token_weights,
    trained_sequences,
    with_gradient_of,
)
from tunix_core.algorithms.metrics import held, policy_metrics, token_means
from tunix_core.algorithms.normalisation import Normalise, group_advantages, rescaled, whitened
from tunix_core.algorithms.policy import SHARED, Objective, Shared, clip_objective, policy_gradient, ratio_objective
from tunix_core.algorithms.reference import ESTIMATORS, Estimator, adaptive_weight, reference_kl
from tunix_core.algorithms.values import clipped_value_loss, gae
from tunix_core.contracts import Adaptive, Algorithm, Critic, LossTerms, Outcome
from tunix_core.errors import UsageError

__all__ = [
    "CORRECTIONS",
    "ESTIMATORS",
    "SHARED",
    "Adaptive",
    "Aggregate",
    "Algorithm",
    "Corrections",
    "Critic",
    "Estimator",
    "LossTerms",
    "Normalise",
    "Objective",
    "Outcome",
    "Shared",
    "UsageError",
    "adaptive_weight",
    "centred",
    "check_aggregate",
    "check_corrections",
    "clip_objective",
    "clipped_surrogate",
    "clipped_value_loss",
    "correct",
    "gae",
    "group_advantages",
    "held",
    "k1",
    "k2",
    "k3",
    "leave_one_out",
    "log_ratio",
    "masked_sum",
    "normalised",
    "overlong_penalty",
    "policy_gradient",
    "policy_metrics",
    "ratio_objective",
    "reference_kl",
    "relative_to_mean",
    "rescaled",
    "sequence_means",
    "sequence_ratio",
    "sequence_sum",
    "sequence_sums",
    "token_means",
    "token_ratio",
    "token_weights",
    "trained_sequences",
    "whitened",
    "with_gradient_of",
]
