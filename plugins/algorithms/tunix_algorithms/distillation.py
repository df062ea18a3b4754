"""On-policy distillation: the student samples, and a teacher's log-probabilities judge each token (Agarwal et al.
2024, "On-Policy Distillation of Language Models"; Lu et al. 2025, "On-Policy Distillation")."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from tunix_core.algorithms import Aggregate, Algorithm, Objective, Shared, log_ratio, policy_gradient, token_ratio


def make_distillation(*, aggregate: Aggregate = "token", **shared: Unpack[Shared]) -> Algorithm:
    """A = reference_logp − behaviour_logp of each token; ρ = exp(logp − old_logp); l = −A ρ.

    The teacher is the run's reference: `trainer.reference`. On-policy the gradient is that of
    KL(student ‖ teacher). What a sample scored doesn't matter, but it must have a score.

    Args:
        aggregate: as in GRPO.
    """
    return policy_gradient(
        "algorithms/distillation",
        lambda scores: np.ones(len(scores)),
        _judged,
        aggregate=aggregate,
        idle_at_zero=False,
        needs_reference=True,
        **shared,
    )


def _judged(logp: Any, batch: Any) -> Objective:
    ratio = token_ratio(logp, batch)
    advantages = log_ratio(batch["reference_logp"], batch["behaviour_logp"], batch["mask"])
    nowhere = jnp.zeros_like(ratio, bool)
    return Objective(-jax.lax.stop_gradient(advantages) * ratio, ratio, nowhere, nowhere)
