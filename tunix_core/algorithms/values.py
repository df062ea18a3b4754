"""Advantages from a critic's values, and the critic's loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tunix_core.algorithms.losses import masked_sum
from tunix_core.contracts import LossTerms

Array = jax.Array


def gae(
    rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float, mask: np.ndarray | None = None
) -> np.ndarray:
    """Generalised advantage estimation over one episode (Schulman et al. 2016): float64 [T] -> float64 [T].

    δ = r + γ V_next − V;  A = δ + γ λ A_next. Where the mask is 0 stands what nobody decided (a tool's
    answer): the next value and advantage are carried across it, and it holds what is carried.

    Args:
        rewards, values: [T]. A reward where the mask is 0 is refused: put it at the token that earned it.
        mask: [T], 1 where a token was sampled; None: everywhere.
    """
    sampled = np.ones(len(rewards), bool) if mask is None else np.asarray(mask) > 0
    if np.any(np.asarray(rewards)[~sampled]):
        raise ValueError(f"rewards {rewards!r} where the mask is 0: put each at the token that earned it")
    advantages = np.zeros(len(rewards), np.float64)
    following = running = 0.0
    for t in reversed(range(len(rewards))):
        if sampled[t]:
            running = rewards[t] + gamma * following - values[t] + gamma * lam * running
            following = values[t]
        advantages[t] = running
    return advantages


def clipped_value_loss(values: Array, batch: Mapping[str, Any], clip: float) -> LossTerms:
    """½ max((V − R)², (V_old + clip(V − V_old, ±clip) − R)²), the mean over trained tokens, as in PPO's
    published code (Schulman et al. 2017; Engstrom et al. 2020, "Implementation Matters")."""
    old, returns, mask = batch["old_values"], batch["returns"], batch["mask"]
    near = old + jnp.clip(values - old, -clip, clip)
    losses = jnp.maximum(jnp.square(values - returns), jnp.square(near - returns)) / 2
    count = jnp.sum(mask)
    held = jax.lax.stop_gradient(masked_sum((jnp.abs(values - old) > clip).astype(values.dtype), mask))
    return LossTerms(masked_sum(losses, mask), count, {"value_clipped": (held, count)})
