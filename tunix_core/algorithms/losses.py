"""Sums over the tokens of a packed batch. JAX, `[R, T]`; R rows, T tokens, N the bound on sequences.

`batch` is the mapping a loss receives: the fields of `types.Batch`, plus "old_logp".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from tunix_core.errors import UsageError

Array = jax.Array
Aggregate = Literal["token", "sequence"]


def masked_sum(values: Array, weights: Array) -> Array:
    """Σ weight · value -> scalar; where the weight is 0, whatever stands there, NaN included, counts nothing."""
    return jnp.sum(jnp.where(weights > 0, values, 0.0) * weights)


def log_ratio(logp: Array, old_logp: Array, mask: Array) -> Array:
    """logp − old_logp where the mask is set, else 0, so that padding can neither overflow nor be NaN."""
    return jnp.where(mask > 0, logp - old_logp, 0.0)


def token_ratio(logp: Array, batch: Mapping[str, Any]) -> Array:
    """exp(logp − old_logp) of each token, [R, T]; 1 where masked."""
    return jnp.exp(log_ratio(logp, batch["old_logp"], batch["mask"]))


def sequence_ratio(logp: Array, batch: Mapping[str, Any]) -> Array:
    """exp(mean over the sequence's trained tokens of logp − old_logp), given to each of its tokens: [R, T]."""
    return jnp.exp(sequence_means(log_ratio(logp, batch["old_logp"], batch["mask"]), batch))


def clipped_surrogate(ratio: Array, advantages: Array, eps_low: float, eps_high: float) -> Array:
    """max(−A r, −A clip(r, 1 − eps_low, 1 + eps_high)): the loss of PPO (Schulman et al. 2017), elementwise."""
    return jnp.maximum(-advantages * ratio, -advantages * jnp.clip(ratio, 1.0 - eps_low, 1.0 + eps_high))


def k1(logp: Array, reference: Array) -> Array:
    """logp − ref, elementwise. With samples from `logp` it estimates KL(policy ‖ reference), unbiased.

    As a loss it has no useful gradient (its expectation is 0). This and k2, k3: Schulman 2020,
    "Approximating KL divergence".
    """
    return logp - reference


def k2(logp: Array, reference: Array) -> Array:
    """(logp − ref)² / 2, elementwise: a biased value whose gradient is that of the KL."""
    return jnp.square(logp - reference) / 2


def k3(logp: Array, reference: Array) -> Array:
    """exp(ref − logp) + (logp − ref) − 1, elementwise: unbiased and never negative; its gradient is biased."""
    return jnp.expm1(reference - logp) + (logp - reference)


def with_gradient_of(value: Array, slope: Array) -> Array:
    """What is `value` and has the gradient of `slope`, elementwise."""
    return slope + jax.lax.stop_gradient(value - slope)


def sequence_sum(values: Array, batch: Mapping[str, Any]) -> Array:
    """Σ of the masked values [R, T] of each sequence -> [N]; 0 where no sequence is."""
    kept = jnp.where(batch["mask"] > 0, values, 0.0) * batch["mask"]
    return jax.ops.segment_sum(kept.ravel(), batch["sequence_ids"].ravel(), num_segments=batch["sequences"])


def sequence_sums(values: Array, batch: Mapping[str, Any]) -> Array:
    """`sequence_sum`, given back to each token of the sequence: [R, T] -> [R, T]; 0 in padding."""
    return sequence_sum(values, batch).at[batch["sequence_ids"]].get(mode="fill", fill_value=0.0)


def sequence_means(values: Array, batch: Mapping[str, Any]) -> Array:
    """The mean over the trained tokens of each sequence, given back to each of its tokens: [R, T] -> [R, T]."""
    counts = sequence_sums(jnp.ones_like(values), batch)
    return sequence_sums(values, batch) / jnp.maximum(counts, 1.0)


def trained_sequences(batch: Mapping[str, Any]) -> Array:
    """How many sequences have a trained token: a scalar."""
    return jnp.sum(sequence_sum(jnp.ones_like(batch["mask"]), batch) > 0, dtype=jnp.float32)


def check_aggregate(aggregate: str) -> None:
    """Raises UsageError unless it is one of `Aggregate`."""
    if aggregate not in get_args(Aggregate):
        raise UsageError(f"aggregate = {aggregate!r}, expected one of {', '.join(get_args(Aggregate))}")


def token_weights(batch: Mapping[str, Any], aggregate: Aggregate) -> Array:
    """How much each token counts, [R, T]; loss = Σ weight · l / Σ weight.

    "token": each trained token counts 1, the mean over tokens. "sequence": each counts 1 / (trained
    tokens of its sequence), the mean over sequences of their token means.
    """
    mask = batch["mask"]
    if aggregate == "token":
        return mask
    return mask / jnp.maximum(sequence_sums(jnp.ones_like(mask), batch), 1.0)
