"""Draws tokens on device. A draw is a pure function of logits, settings, seed and position.

Takes logits and per-slot settings; gives token ids and their log-probabilities. Does not know slots,
caches or requests. S slots, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32

Array = jax.Array
ONE = 0x3F800000  # the bits of 1.0, the largest weight there is
WEIGHT_BITS = 30  # bits below this hold every float32 in [0, 1]


class Settings(NamedTuple):
    """How each slot draws.

    Attributes:
        seed: uint32 [S, 2], the two halves of the request's 64 bits, high half first.
        temperature: float32 [S]; 0 is greedy.
        top_k: int32 [S]; 0 is off.
        top_p: float32 [S]; 1 is off.
        min_p: float32 [S]; 0 is off.
    """

    seed: Any
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any


class Drawn(NamedTuple):
    """One token per slot, each [S].

    Attributes:
        token: int32.
        logprob: float32, under the distribution sampled from; 0 when greedy, which is a point mass.
        full_logprob: float32, under the tempered distribution before truncation; at temperature 1 when greedy.
    """

    token: Array
    logprob: Array
    full_logprob: Array


def draw(logits: Array, positions: Array, settings: Settings) -> Drawn:
    """float32 [S, V] and the absolute position int32 [S] of the token to be drawn -> a token per slot.

    Gumbel-max as a race: the token whose weight over an exponential variate is largest.
    """
    greedy = settings.temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, settings.temperature)[:, None]
    best = jnp.max(scaled, axis=-1)
    weights = jnp.exp(scaled - best[:, None])
    truncates = ((settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)) & ~greedy
    floor = jax.lax.cond(truncates.any(), _floor, lambda weights, _: jnp.zeros_like(best), weights, settings)
    kept = jnp.where(weights >= floor[:, None], weights, 0.0)
    raced = kept / exponential(settings.seed, positions, logits.shape[-1])
    token = _first_best(jnp.where(greedy[:, None], scaled, raced))
    picked = jnp.take_along_axis(scaled, token[:, None], axis=-1)[:, 0] - best
    whole = weights.sum(axis=-1)
    logprob = picked - jnp.log(jnp.where(truncates, kept.sum(axis=-1), whole))
    return Drawn(token, jnp.where(greedy, 0.0, logprob), picked - jnp.log(whole))


def exponential(seed: Array, positions: Array, size: int) -> Array:
    """Exponential variates, float32 [S, size], each slot's a function of its seed [S, 2] and position [S] alone."""
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(seed, impl="threefry2x32"), positions)
    counts = jnp.arange(size + size % 2, dtype=jnp.uint32)
    # The hash itself rather than random.bits: that one throws half of the words away.
    bits = jax.vmap(lambda key: threefry_2x32(key, counts))(jax.random.key_data(keys))[:, :size]
    # All 32 bits, finest near 0: small variates win the race, and 23 bits would distort rare tokens.
    return -jnp.log1p(-(bits.astype(jnp.float32) * 2.0**-32 + 2.0**-33))


def _first_best(values: Array) -> Array:
    """The index of each row's largest value, the first of equals: [S, V] -> int32 [S]. Vectorises, unlike argmax."""
    best = jnp.max(values, axis=-1, keepdims=True)
    index = jnp.arange(values.shape[-1], dtype=jnp.int32)
    return jnp.min(jnp.where(values == best, index, values.shape[-1]), axis=-1)


def _floor(weights: Array, settings: Settings) -> Array:
    """The smallest weight each slot still draws from, float32 [S]: top-k, then top-p of what is left, then min-p.

    Tokens that tie at the edge all stay.
    """
    off = jnp.zeros_like(settings.top_p)
    by_k = _largest_floor(weights, jnp.ones_like(weights), settings.top_k.astype(jnp.float32))
    by_k = jnp.where(settings.top_k > 0, by_k, off)
    left = jnp.where(weights >= by_k[:, None], weights, 0.0)
    by_p = _largest_floor(left, left, settings.top_p * left.sum(axis=-1))
    by_p = jnp.where(settings.top_p < 1, by_p, off)
    floor = jnp.maximum(jnp.maximum(by_k, by_p), settings.min_p)
    return jnp.where(settings.temperature <= 0, off, floor)


def _largest_floor(weights: Array, measure: Array, target: Array) -> Array:
    """The largest floor [S] above which the measure [S, V] still sums to the target [S].

    Found by its bits, one at a time: exact, and no sort of the vocabulary.
    """
    ordered = jax.lax.bitcast_convert_type(weights, jnp.int32)  # float32 >= 0 sort as their bits do

    def next_bit(index: Array, found: Array) -> Array:
        candidate = found | (1 << (WEIGHT_BITS - 1 - index))
        mass = jnp.where(ordered >= candidate[:, None], measure, 0.0).sum(axis=-1)
        return jnp.where(mass >= target, candidate, found)

    found = jax.lax.fori_loop(0, WEIGHT_BITS, next_bit, jnp.zeros(weights.shape[:1], jnp.int32))
    return jax.lax.bitcast_convert_type(jnp.minimum(found, ONE), jnp.float32)
