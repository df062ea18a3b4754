"""Attention over a cache that lies in pieces, as far as the longest conversation reaches.

A cache of one piece would cost its whole length at every step. In pieces, those that no token reaches are
skipped while the program runs, and a skipped piece gives exactly what one gives that is masked throughout:
what a slot gets doesn't depend, to the bit, on how far the others reach. S slots, T tokens, G query heads a
key and value head, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tunix_core.models.layers import matmul

Array = jax.Array
LayerCache = dict[str, Any]  # "k": a tuple of [S, kv_heads, D, L], "v": of [S, kv_heads, L, D]; each a piece
Piece = dict[str, dict[str, Array]]
MASKED = -1e30  # finite, so that a row with nothing to attend to gives numbers, not NaN


def joined(pieces: Sequence[Piece]) -> dict[str, LayerCache]:
    """A cache as each layer sees it, by the layer's name: its part of every piece."""
    return {name: {kind: tuple(piece[name][kind] for piece in pieces) for kind in "kv"} for name in pieces[0]}


def pieces_of(cache: dict[str, LayerCache]) -> tuple[Piece, ...]:
    """What `joined` was made of."""
    count = len(next(iter(cache.values()))["k"])
    return tuple({name: {kind: layer[kind][i] for kind in "kv"} for name, layer in cache.items()} for i in range(count))


def lengths_of(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """How many positions each piece has."""
    return tuple(next(iter(piece.values()))["k"].shape[-1] for piece in pieces)


def write(cache: LayerCache, k: Array, v: Array, positions: Array) -> LayerCache:
    """k, v [S, T, kv_heads, D] put at positions [S, T]; those past the last piece are dropped."""
    slots = jnp.arange(positions.shape[0])[:, None]
    start, keys, values = 0, [], []
    for key, value in zip(cache["k"], cache["v"], strict=True):
        length = key.shape[-1]
        here = jnp.where(positions < start, length, positions - start)  # a negative index would count from the end
        keys.append(key.at[slots, :, :, here].set(k, mode="drop"))
        values.append(value.at[slots, :, here].set(v, mode="drop"))
        start += length
    return {"k": tuple(keys), "v": tuple(values)}


def attend_pieces(
    q: Array,
    keys: Sequence[Array],
    values: Sequence[Array],
    scale: float,
    *,
    positions: Array,
    lengths: Sequence[int],
    window: int | None,
) -> Array:
    """q [S, T, heads, D] over keys [S, kv_heads, D, L] and values [S, kv_heads, L, D] of each piece.

    A token sees the cache's positions up to its own, the last `window` of them if that is given. Both products run
    along rows that lie in memory as they are read: on a CPU, decoding a full batch of slots takes half the time
    it takes with keys and values [S, L, kv_heads, D].

    Returns:
        [S, T, heads, D].
    """
    slots, length, heads, size = q.shape
    kv_heads = keys[0].shape[1]
    grouped = (q * scale).reshape(slots, length, kv_heads, heads // kv_heads, size).transpose(0, 2, 3, 1, 4)
    *starts, end = accumulate(lengths, initial=0)
    reach = jnp.where(positions < end, positions, -1).max()
    parts = [
        _part(grouped, k, v, positions - start, window, reach >= start if start else None)
        for start, k, v in zip(starts, keys, values, strict=True)
    ]
    top = jnp.stack([part.top for part in parts]).max(axis=0)
    factors = [jnp.exp(part.top - top) for part in parts]
    total: Any = sum(part.total * factor for part, factor in zip(parts, factors, strict=True))
    out: Any = sum(part.out * factor for part, factor in zip(parts, factors, strict=True)) / total
    return out.astype(q.dtype).transpose(0, 3, 1, 2, 4).reshape(q.shape)


class _Part(NamedTuple):
    """Of one piece, float32: the largest score and the sum of weights, [S, kv_heads, G, T, 1]; the weighted sum of
    values, [S, kv_heads, G, T, D]."""

    top: Array
    total: Array
    out: Array


def _part(q: Array, k: Array, v: Array, positions: Array, window: int | None, reached: Array | None) -> _Part:
    """What one piece gives to q [S, kv_heads, G, T, D] at positions [S, T], counted from its start; nothing unless it
    is reached."""

    def read(q: Array, k: Array, v: Array) -> _Part:
        slots, kv_heads, group, length, size = q.shape
        back = positions[:, :, None] - jnp.arange(k.shape[-1])
        seen = (back >= 0) if window is None else (back >= 0) & (back < window)
        scores = matmul(q.reshape(slots, kv_heads, group * length, size), k)
        scores = scores.reshape(slots, kv_heads, group, length, -1) + jnp.where(seen, 0.0, MASKED)[:, None, None]
        top = scores.max(axis=-1, keepdims=True)
        shares = jnp.exp(scores - top)
        out = matmul(shares.astype(v.dtype).reshape(slots, kv_heads, group * length, -1), v)
        return _Part(top, shares.sum(axis=-1, keepdims=True), out.reshape(q.shape))

    def skip(q: Array, k: Array, v: Array) -> _Part:
        none = jnp.zeros((*q.shape[:-1], 1), jnp.float32)
        return _Part(jnp.full_like(none, MASKED), none, jnp.zeros(q.shape, jnp.float32))

    return read(q, k, v) if reached is None else lax.cond(reached, read, skip, q, k, v)
