"""Rotary positions: angles from positions, and heads turned by them."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from tunix_core.models.config import RopeScaling

Array = jax.Array
Rotation = tuple[Array, Array]


def rotary(positions: Array, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Rotation:
    """Cosine and sine of each position's angles: [S, T] -> two float32 [S, T, 1, head_dim / 2]."""
    rates = frequencies(head_dim, theta)
    if scaling:
        rates = rates / slowdown(rates, scaling)
    angles = positions[:, :, None, None].astype(jnp.float32) * rates
    return jnp.cos(angles), jnp.sin(angles)


def frequencies(head_dim: int, theta: float) -> Array:
    """Radians a position for each pair of a head: float32 [head_dim / 2]."""
    half = head_dim // 2
    return theta ** (-jnp.arange(half, dtype=jnp.float32) / half)


def slowdown(rates: Array, scaling: RopeScaling) -> Array:
    """By what each of the frequencies [head_dim / 2] is divided."""
    if scaling.kind == "linear":
        return jnp.full_like(rates, scaling.factor)
    turns = scaling.original_positions * rates / (2 * math.pi)
    kept = jnp.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)
    return 1.0 / (kept + (1.0 - kept) / scaling.factor)


def rotate(x: Array, rotation: Rotation) -> Array:
    """Turns the two halves of each head, [S, T, heads, head_dim], by its position's angles."""
    cos, sin = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
