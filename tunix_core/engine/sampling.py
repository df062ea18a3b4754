"""Draws tokens on device. A draw is a pure function of logits, settings, seed and position.

Takes logits and per-slot settings; gives token ids and their log-probabilities. Does not know slots,
caches or requests. S slots, V vocabulary, N blocks of B tokens each.

The vocabulary lies along the rows here and the slots along the columns: every sum and maximum over the
vocabulary then runs over whole vectors of slots, and for each slot in the same order whoever is beside it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32

Array = jax.Array
ONE = 0x3F800000  # the bits of 1.0, the largest weight there is
FRACTION_BITS = 23  # of a uniform variate: any more, and its product with a sum could round to the sum itself


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


def draw(logits: Array, variates: Array, settings: Settings) -> Drawn:
    """float32 [S, V] and what `uniform` gives for the token to be drawn, [S, 2] -> a token per slot.

    Inverts the distribution function in two steps, a block of tokens and then a token of it, each with a variate
    of its own.
    """
    greedy = settings.temperature <= 0
    temperature = jnp.where(greedy, 1.0, settings.temperature)
    columns = _blocks(logits.T)
    scaled = columns / temperature
    peaks = scaled.max(axis=1)
    best = peaks.max(axis=0)
    weights = jnp.exp(scaled - best)
    truncates = ((settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)) & ~greedy
    # From the logits, which lie in memory anyway: the weights never do where nobody truncates.
    floor = jax.lax.cond(
        truncates.any(),
        lambda logits: _floor(jnp.exp(logits / temperature - best), settings),
        lambda _: jnp.zeros_like(best),
        columns,
    )
    masses = jnp.where(weights >= floor, weights, 0.0).sum(axis=1)
    whole = weights.sum(axis=1).sum(axis=0)

    first, second = variates.T
    block = jnp.where(greedy, _first(peaks == best), _invert(masses, first))
    inside = jnp.take_along_axis(scaled, block[None, None], axis=0)[0]
    among = jnp.exp(inside - best)
    place = _invert(jnp.where(among >= floor, among, 0.0), second)
    place = jnp.where(greedy, _first(inside == best), place)
    picked = jnp.take_along_axis(inside, place[None], axis=0)[0] - best
    logprob = picked - jnp.log(jnp.where(truncates, masses.sum(axis=0), whole))
    token = block * scaled.shape[1] + place
    return Drawn(token.astype(jnp.int32), jnp.where(greedy, 0.0, logprob), picked - jnp.log(whole))


def uniform(seed: Array, positions: Array) -> Array:
    """Two variates in [0, 1) for each slot and each of K positions, float32 [K, S, 2]: a function of the slot's seed
    [S, 2] and the absolute position [K, S] of the token to be drawn, and of nothing else."""
    counts = jnp.stack([positions, jnp.zeros_like(positions)], axis=-1).astype(jnp.uint32)
    bits = jax.vmap(jax.vmap(threefry_2x32), (None, 0))(seed, counts)
    return (bits >> (32 - FRACTION_BITS)).astype(jnp.float32) * 2.0**-FRACTION_BITS


def _blocks(columns: Array) -> Array:
    """[V, S] -> [N, B, S], B about the root of V; what is added to fill the last block has no weight."""
    vocabulary, slots = columns.shape
    size = 2 ** math.ceil(math.log2(vocabulary) / 2)
    missing = -vocabulary % size
    padded = jnp.pad(columns, ((0, missing), (0, 0)), constant_values=-jnp.inf) if missing else columns
    return padded.reshape(-1, size, slots)


def _invert(masses: Array, variate: Array) -> Array:
    """The index of the mass [M, S] within which that share [S] of their sum is reached: int32 [S]."""
    reached = jnp.cumsum(masses, axis=0)
    beyond = (reached > variate * reached[-1]) & (masses > 0)
    # Sums of other orders can differ in their last bit: should none be beyond, any with a mass will do.
    found = _first(beyond)
    return jnp.where(found < len(masses), found, _first(masses == masses.max(axis=0)))


def _first(holds: Array) -> Array:
    """The first index along the rows at which it holds, [M, S] -> int32 [S]; M where nowhere. Vectorises, unlike
    argmax."""
    return jnp.where(holds, jnp.arange(len(holds), dtype=jnp.int32)[:, None], len(holds)).min(axis=0)


def _floor(weights: Array, settings: Settings) -> Array:
    """The smallest of the weights [N, B, S] that each slot still draws, float32 [S]: top-k, then top-p of what is
    left, then min-p.

    Tokens that tie at the edge all stay.
    """
    off = jnp.zeros_like(settings.top_p)
    by_k, by_p = settings.top_k > 0, settings.top_p < 1
    k = settings.top_k.astype(jnp.float32)
    k_floor = jax.lax.cond(by_k.any(), _kth_weight, lambda *_: off, weights, k)
    k_floor = jnp.where(by_k, k_floor, off)
    left = jnp.where(weights >= k_floor, weights, 0.0)
    p_floor = jax.lax.cond(by_p.any(), _nucleus_edge, lambda *_: off, left, settings.top_p)
    p_floor = jnp.where(by_p, p_floor, off)
    floor = jnp.maximum(jnp.maximum(k_floor, p_floor), settings.min_p)
    return jnp.where(settings.temperature <= 0, off, floor)


def _kth_weight(weights: Array, k: Array) -> Array:
    """A floor [S] above which lie the k [S] largest of the weights [N, B, S], and those that tie with the last."""
    lowest = jnp.zeros_like(k)
    return _largest_floor(weights, jnp.ones_like(weights), k, lowest, jnp.ones_like)


def _nucleus_edge(weights: Array, p: Array) -> Array:
    """A floor [S] above which lie the fewest of the weights [N, B, S] that sum to the share p [S] of all."""
    total = _sum(weights)
    # What lies below a floor sums to less than the floor times how many there are.
    lowest = (1.0 - p) * total / (2 * weights.shape[0] * weights.shape[1])
    return _largest_floor(weights, weights, p * total, lowest, lambda floor: floor)


def _largest_floor(weights: Array, measure: Array, target: Array, lowest: Array, least: Any) -> Array:
    """The largest floor [S], by its effect, above which the measure [N, B, S] still sums to the target [S].

    Found by halving an interval of float32's bits, with no sort of the vocabulary.

    Args:
        lowest: a floor [S] that is certainly low enough.
        least: floor [S] -> the smallest measure [S] that a weight at or above it has; an interval that holds
            less than two of these holds one weight alone, and need not be halved further.
    """
    ordered = jax.lax.bitcast_convert_type(weights, jnp.int32)  # float32 >= 0 sort as their bits do
    low = jax.lax.bitcast_convert_type(lowest, jnp.int32)
    high = jnp.full_like(low, ONE + 1)
    start = (low, high, _sum(jnp.where(ordered >= low, measure, 0.0)), jnp.zeros_like(target))

    def open_(state: tuple[Array, ...]) -> Array:
        low, high, above_low, above_high = state
        one_alone = above_low - above_high < 2 * least(jax.lax.bitcast_convert_type(low, jnp.float32))
        return (high - low > 1) & ~one_alone

    def halve(state: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, above_low, above_high = state
        middle = low + (high - low) // 2
        mass = _sum(jnp.where(ordered >= middle, measure, 0.0))
        up, down = open_(state) & (mass >= target), open_(state) & (mass < target)
        return (
            jnp.where(up, middle, low),
            jnp.where(down, middle, high),
            jnp.where(up, mass, above_low),
            jnp.where(down, mass, above_high),
        )

    low, *_ = jax.lax.while_loop(lambda state: open_(state).any(), halve, start)
    return jnp.minimum(jax.lax.bitcast_convert_type(low, jnp.float32), 1.0)


def _sum(values: Array) -> Array:
    """[N, B, S] -> [S], in the same order for each slot."""
    return values.sum(axis=1).sum(axis=0)
