"""Rotary positions: angles from positions, and heads turned by them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from tunix_core.models.config import RopeScaling

Array = jax.Array
Rotation = tuple[Array, Array]


def rotary(positions: Array, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Rotation:
    """Cosine and sine of each position's angles, positions >= 0: [S, T] -> two float32 [S, T, 1, head_dim / 2]."""
    rates, longer = frequencies(head_dim, theta), scaling.attention_factor if scaling else 1.0
    if scaling:
        rates = rates / slowdown(rates, theta, scaling)

    def turns(positions: Array) -> Rotation:
        angles = positions[:, :, None, None].astype(jnp.float32) * rates
        return jnp.cos(angles) * longer, jnp.sin(angles) * longer

    return lax.platform_dependent(positions, cpu=partial(_once, turns), default=turns)


def _once(turns: Callable[[Array], Rotation], positions: Array) -> Rotation:
    """What `turns` gives, kept in memory. XLA's compiler for CPUs puts what it can into the loops that need it: sines
    would be computed in each layer and for each head, a tenth of all that a small model computes. It leaves alone
    what a branch gives; the other one, of negative positions, is never taken."""
    shapes = jax.eval_shape(turns, positions)
    return lax.cond(positions.max() >= 0, turns, lambda _: jax.tree.map(jnp.zeros_like, shapes), positions)


def frequencies(head_dim: int, theta: float) -> Array:
    """Radians a position for each pair of a head: float32 [head_dim / 2]."""
    half = head_dim // 2
    return theta ** (-jnp.arange(half, dtype=jnp.float32) / half)


def slowdown(rates: Array, theta: float, scaling: RopeScaling) -> Array:
    """By what each of the frequencies [head_dim / 2] of base `theta` is divided.

    "yarn" is YaRN's NTK-by-parts (Peng et al. 2023, arXiv:2309.00071, section 3.2), its bounds whole pairs as in
    its authors' code.
    """
    if scaling.kind == "linear":
        return jnp.full_like(rates, scaling.factor)
    kept = _kept_by_llama3(rates, scaling) if scaling.kind == "llama3" else _kept_by_yarn(rates, theta, scaling)
    return 1.0 / (kept + (1.0 - kept) / scaling.factor)


def _kept_by_llama3(rates: Array, scaling: RopeScaling) -> Array:
    turns = scaling.original_positions * rates / (2 * math.pi)
    return jnp.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)


def _kept_by_yarn(rates: Array, theta: float, scaling: RopeScaling) -> Array:
    half = len(rates)

    def pair(turns: float) -> float:
        """The pair, not always a whole one, that turns so often within the original positions."""
        return half * math.log(scaling.original_positions / (2 * math.pi * turns)) / math.log(theta)

    first, last = max(math.floor(pair(scaling.high)), 0), min(math.ceil(pair(scaling.low)), 2 * half - 1)
    return 1.0 - jnp.clip((jnp.arange(half) - first) / max(last - first, 1e-3), 0.0, 1.0)


def rotate(x: Array, rotation: Rotation) -> Array:
    """Turns the two halves of each head, [S, T, heads, head_dim], by its position's angles."""
    cos, sin = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
