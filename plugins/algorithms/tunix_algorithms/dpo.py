"""DPO on the best and the worst sample of each group (Rafailov et al. 2023, "Direct Preference Optimization")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tunix_core.algorithms import Algorithm, LossTerms, log_ratio, masked_sum


def make_dpo(*, beta: float = 0.1) -> Algorithm:
    """A = 1 for the best of the group, −1 for the worst, 0 for the others, and for all where none is better;
    m = Σ over the pair's trained tokens of A (logp − reference_logp); l = −log σ(beta m), the mean over pairs.

    Where n samples share the best score, or the worst, each has 1/n of it: their mean is one side of the pair.

    Args:
        beta: how much the margin counts; the higher, the closer to the reference.
    """

    def loss(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
        away = log_ratio(logp, batch["reference_logp"], batch["mask"])
        margins = _by_group(batch["advantages"] * away, batch)
        paired = _by_group(jnp.abs(batch["advantages"]), batch) > 0
        losses = masked_sum(-jax.nn.log_sigmoid(beta * margins), paired.astype(logp.dtype))
        count = jnp.sum(paired, dtype=logp.dtype)
        margin = jax.lax.stop_gradient(jnp.sum(jnp.where(paired, margins, 0.0)))
        preferred = jnp.sum((margins > 0) & paired, dtype=logp.dtype)
        return LossTerms(losses, count, {"margin": (margin, count), "preferred": (preferred, count)})

    return Algorithm("algorithms/dpo", best_and_worst, loss, idle_at_zero=True, needs_reference=True, together=True)


def best_and_worst(scores: np.ndarray) -> np.ndarray:
    """1 / their number for the best, −1 / their number for the worst, else 0: float64 [G]."""
    scores = np.asarray(scores, np.float64)
    if not np.ptp(scores) > 0:
        return np.zeros_like(scores)
    best, worst = scores == scores.max(), scores == scores.min()
    return best / best.sum() - worst / worst.sum()


def _by_group(values: Any, batch: Mapping[str, Any]) -> Any:
    """Σ over the trained tokens of each group of the micro-batch: [R, T] -> [N]."""
    kept = jnp.where(batch["mask"] > 0, values, 0.0)
    return jax.ops.segment_sum(kept.ravel(), batch["group_ids"].ravel(), num_segments=batch["sequences"])
