"""What a policy-gradient loss tells of itself, as (sum, count) pairs that add up over micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tunix_core.algorithms.losses import k1, k3, masked_sum

Array = jax.Array
Metrics = dict[str, tuple[Array, Array]]


def token_means(values: Mapping[str, Array], mask: Array) -> Metrics:
    """Each array [R, T] as (sum over trained tokens, their number), without gradient."""
    count = jnp.sum(mask)
    return {
        name: (jax.lax.stop_gradient(masked_sum(value.astype(mask.dtype), mask)), count)
        for name, value in values.items()
    }


def held(ratio: Array, advantages: Array, eps_low: float, eps_high: float) -> tuple[Array, Array]:
    """Where the clip of PPO stops the gradient, on its low and on its high side: bool [R, T] each."""
    return (advantages < 0) & (ratio < 1.0 - eps_low), (advantages > 0) & (ratio > 1.0 + eps_high)


def policy_metrics(logp: Array, ratio: Array, low: Array, high: Array, batch: Mapping[str, Any]) -> Metrics:
    """Mean ratio, share of tokens held by each side of the clip, and KL(behaviour ‖ policy) by k1 and k3.

    Args:
        logp: float32 [R, T].
        ratio: float32 [R, T], of `logp` to "old_logp", 1 where masked.
        low, high: bool [R, T], where the gradient is held because the ratio is too low or too high.
        batch: the mapping a loss receives.

    Returns:
        "ratio_mean", "clip_low", "clip_high", "kl_k1", "kl_k3", each (sum over trained tokens, their number).
    """
    behaviour = batch["behaviour_logp"]
    values = {
        "ratio_mean": ratio,
        "clip_low": low,
        "clip_high": high,
        "kl_k1": k1(behaviour, logp),
        "kl_k3": k3(behaviour, logp),
    }
    return token_means(values, batch["mask"])
