"""Staying close to a reference policy: KL estimators as a loss or as a cost on the score, and a weight that adapts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from tunix_core.algorithms.losses import k1, k2, k3, log_ratio, with_gradient_of
from tunix_core.contracts import Adaptive, Outcome
from tunix_core.errors import UsageError

Array = jax.Array
Estimator = Literal["k1", "k2", "k3", "k1_corrected", "k3_corrected"]
KL_WEIGHT = "kl_weight"
OBSERVED = "reference_k3"  # the metric that the weight adapts to


def k1_corrected(logp: Array, reference: Array) -> Array:
    """The value of k1 with the gradient of k2, which is that of the KL where samples are from `logp`.

    This and `k3_corrected`: Tang & Munos 2025, "On a few pitfalls in KL divergence gradient estimation for RL".
    """
    return with_gradient_of(k1(logp, reference), k2(logp, reference))


def k3_corrected(logp: Array, reference: Array) -> Array:
    """The value of k3 with the gradient of k2."""
    return with_gradient_of(k3(logp, reference), k2(logp, reference))


ESTIMATORS: Mapping[str, Callable[[Array, Array], Array]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "k1_corrected": k1_corrected,
    "k3_corrected": k3_corrected,
}


def check_estimator(kl: str) -> None:
    """Raises UsageError unless it is one of `Estimator`."""
    if kl not in get_args(Estimator):
        raise UsageError(f"kl = {kl!r}, expected one of {', '.join(get_args(Estimator))}")


def reference_kl(logp: Array, batch: Mapping[str, Any], kl: Estimator) -> Array:
    """The estimate of KL(policy ‖ reference) at each token, [R, T]; 0 where masked."""
    away = log_ratio(logp, batch["reference_logp"], batch["mask"])
    return ESTIMATORS[kl](away, jnp.zeros_like(away))


def kl_cost(outcome: Outcome, kl: Estimator) -> np.ndarray:
    """What each token of a trajectory costs when the KL is part of the reward: float64 [T].

    Of the policy that sampled: a value, so the corrected estimators are those they correct.
    """
    away = outcome.behaviour_logp.astype(np.float64) - outcome.reference_logp
    return {"k1": away, "k2": away**2 / 2, "k3": np.expm1(-away) + away}[kl.removesuffix("_corrected")]


def weight_of(outcome: Outcome, kl_weight: float) -> float:
    """The weight of the KL: the adaptive one where there is one."""
    return outcome.adaptive.get(KL_WEIGHT, kl_weight)


def score_costs(outcomes: Sequence[Outcome], kl: Estimator, kl_weight: float) -> np.ndarray:
    """Of each trajectory, weight · Σ over its tokens of the estimate: float64 [G]."""
    return np.array([weight_of(o, kl_weight) * kl_cost(o, kl).sum() for o in outcomes])


def penalised_tokens(outcomes: Sequence[Outcome], kl: Estimator, kl_weight: float) -> list[Outcome]:
    """Each token's advantage less weight · Σ of the estimates from that token on."""
    return [
        replace(o, advantages=o.advantages - weight_of(o, kl_weight) * np.cumsum(kl_cost(o, kl)[::-1])[::-1])
        for o in outcomes
    ]


def adaptive_weight(start: float, target: float, rate: float = 0.1) -> Adaptive:
    """A KL weight that pulls the step's mean k3 to `target`: β ← β (1 + rate · clip(KL / target − 1, ±0.2)).

    Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences"; here the KL is per token.
    """

    def update(weight: float, metrics: Mapping[str, float]) -> float:
        return weight * (1.0 + rate * float(np.clip(metrics[OBSERVED] / target - 1.0, -0.2, 0.2)))

    return Adaptive(KL_WEIGHT, start, update)
