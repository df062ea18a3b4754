"""What a policy-gradient loss tells of itself, as (sum, count) pairs that add up over micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tunix_core.algorithms.losses import k1, k3, masked_sum

Array = jax.Array


def ratio_metrics(
    logp: Array, ratio: Array, batch: Mapping[str, Any], eps_low: float, eps_high: float
) -> dict[str, tuple[Array, Array]]:
    """Mean ratio, share of tokens held by each side of the clip, and KL(behaviour ‖ policy) by k1 and k3.

    Args:
        logp: float32 [R, T].
        ratio: float32 [R, T], of `logp` to "old_logp", 1 where masked.
        batch: the mapping a loss receives.

    Returns:
        "ratio_mean", "clip_low", "clip_high", "kl_k1", "kl_k3", each (sum over trained tokens, their number).
    """
    mask, advantages, behaviour = batch["mask"], batch["advantages"], batch["behaviour_logp"]
    values = {
        "ratio_mean": ratio,
        "clip_low": (advantages < 0) & (ratio < 1.0 - eps_low),
        "clip_high": (advantages > 0) & (ratio > 1.0 + eps_high),
        "kl_k1": k1(behaviour, logp),
        "kl_k3": k3(behaviour, logp),
    }
    count = jnp.sum(mask)
    return {
        name: (jax.lax.stop_gradient(masked_sum(value.astype(logp.dtype), mask)), count)
        for name, value in values.items()
    }
