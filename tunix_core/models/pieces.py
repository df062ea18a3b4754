"""Attention over a cache that lies in pieces, as far as the longest conversation reaches.

A cache of one piece would cost its whole length at every step. In pieces, those that no token reaches are
skipped while the program runs, and a skipped piece gives exactly what one gives that is masked throughout:
what a slot gets doesn't depend, to the bit, on how far the others reach. S slots, T tokens, G query heads a
key and value head, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tunix_core.models.layers import matmul

Array = jax.Array
LayerCache = dict[str, Any]  # "k": a tuple of [S, kv_heads, D, L], "v": of [S, kv_heads, L, D]; each a piece
Piece = dict[str, dict[str, Array]]
AXES = {"k": 2, "v": 1}  # which axis counts positions, in one slot's part of a leaf
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


def settle(cache: Sequence[Piece], fresh: Piece, positions: Array, counts: Array) -> tuple[Piece, ...]:
    """The cache with what lies in the first `counts` [S] places of `fresh` written from `positions` [S] on."""

    def written(start: int, piece: Piece) -> Piece:
        def leaf(name: str, kind: str) -> Array:
            return _settled(piece[name][kind], fresh[name][kind], AXES[kind], positions - start, counts)

        return {name: {kind: leaf(name, kind) for kind in layer} for name, layer in piece.items()}

    settled, start = [], 0
    for length, piece in zip(lengths_of(cache), cache, strict=True):
        here = (positions < start + length) & (positions + counts > start) & (counts > 0)
        settled.append(lax.cond(here.any(), partial(written, start), lambda piece: piece, piece))
        start += length
    return tuple(settled)


def _settled(leaf: Array, fresh: Array, axis: int, positions: Array, counts: Array) -> Array:
    """One leaf of a piece, with positions counted from its start: each slot's part of it is read, changed and put
    back, for which a whole run of positions costs what one does."""

    def slot(leaf: Array, fresh: Array, position: Array, count: Array) -> Array:
        size = min(leaf.shape[axis], fresh.shape[axis])
        corner = jnp.clip(position, 0, leaf.shape[axis] - size)
        step = corner + jnp.arange(size) - position
        there = lax.dynamic_slice_in_dim(leaf, corner, size, axis)
        new = jnp.take(fresh, step, axis, mode="clip")
        ours = ((step >= 0) & (step < count)).reshape([-1 if i == axis else 1 for i in range(leaf.ndim)])
        return lax.dynamic_update_slice_in_dim(leaf, jnp.where(ours, new, there), corner, axis)

    return jax.vmap(slot)(leaf, fresh, positions, counts)


def attend_cached(
    q: Array,
    k: Array,
    v: Array,
    cache: LayerCache,
    scale: float,
    *,
    positions: Array,
    lengths: Sequence[int],
    window: int | None,
) -> tuple[Array, LayerCache]:
    """Writes k, v [S, T, kv_heads, D] at positions [S, T]; then q [S, T, heads, D] attends to the cache up to its own.

    A token sees the last `window` positions alone if that is given. Both products run along rows that lie in memory
    as they are read: on a CPU, decoding a full batch of slots takes half the time it takes with keys and values
    [S, L, kv_heads, D].

    Returns:
        [S, T, heads, D], and the cache.
    """
    cache = write(cache, k, v, positions)
    grouped = _grouped(q * scale, k.shape[2])
    return _result(_look(grouped, cache, positions, 0, lengths, window), q), cache


def attend_step(
    q: Array,
    k: Array,
    v: Array,
    cache: LayerCache,
    scale: float,
    *,
    positions: Array,
    step: Array,
    lengths: Sequence[int],
    window: int | None,
) -> tuple[Array, LayerCache]:
    """The same for one token of each slot, at positions [S]: k and v go to place `step` of `cache["fresh"]`, of which
    the places up to it follow the cache's positions before the first step's.

    Returns:
        [S, 1, heads, D], and what is fresh.
    """
    fresh = {
        kind: lax.dynamic_update_slice_in_dim(cache["fresh"][kind], new, step, AXES[kind] + 1)
        for kind, new in (("k", k.transpose(0, 2, 3, 1)), ("v", v.transpose(0, 2, 1, 3)))
    }
    grouped, at = _grouped(q * scale, k.shape[2]), positions[:, None]
    far = _look(grouped, cache, at, step + 1, lengths, window)
    near = _read(grouped, fresh["k"], fresh["v"], jnp.full_like(at, step), 0, window)
    return _result(_both(far, near), q), fresh


class _Part(NamedTuple):
    """Of one piece or several, float32: the largest score and the sum of weights, [S, kv_heads, G, T, 1]; the weighted
    sum of values, [S, kv_heads, G, T, D]."""

    top: Array
    total: Array
    out: Array


def _grouped(q: Array, kv_heads: int) -> Array:
    """[S, T, heads, D] -> [S, kv_heads, G, T, D]."""
    slots, length, heads, size = q.shape
    return q.reshape(slots, length, kv_heads, heads // kv_heads, size).transpose(0, 2, 3, 1, 4)


def _look(
    q: Array, cache: LayerCache, positions: Array, nearest: Any, lengths: Sequence[int], window: int | None
) -> _Part:
    """What the pieces give to tokens at positions [S, T], of what lies at least `nearest` positions back."""
    *starts, end = accumulate(lengths, initial=0)
    reach = jnp.where(positions < end, positions - nearest, -1).max()

    def from_piece(i: int, q: Array) -> _Part:
        part = _read(q, cache["k"][i], cache["v"][i], positions - starts[i], nearest, window)
        if i + 1 == len(starts):
            return part
        return _both(part, lax.cond(reach >= starts[i + 1], partial(from_piece, i + 1), _nothing, q))

    return from_piece(0, q)


def _nothing(q: Array) -> _Part:
    none = jnp.zeros((*q.shape[:-1], 1), jnp.float32)
    return _Part(jnp.full_like(none, MASKED), none, jnp.zeros(q.shape, jnp.float32))


def _both(a: _Part, b: _Part) -> _Part:
    """Of two pieces together; with nothing, exactly what one of them is."""
    top = jnp.maximum(a.top, b.top)
    of_a, of_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
    return _Part(top, a.total * of_a + b.total * of_b, a.out * of_a + b.out * of_b)


def _read(q: Array, k: Array, v: Array, positions: Array, nearest: Any, window: int | None) -> _Part:
    """q [S, kv_heads, G, T, D] over one piece, k [S, kv_heads, D, L] and v [S, kv_heads, L, D]."""
    slots, kv_heads, group, length, size = q.shape
    back = positions[:, :, None] - jnp.arange(k.shape[-1])
    seen = (back >= nearest) if window is None else (back >= nearest) & (back < window)
    scores = matmul(q.reshape(slots, kv_heads, group * length, size), k)
    scores = scores.reshape(slots, kv_heads, group, length, -1) + jnp.where(seen, 0.0, MASKED)[:, None, None]
    top = scores.max(axis=-1, keepdims=True)
    shares = jnp.exp(scores - top)
    out = matmul(shares.astype(v.dtype).reshape(slots, kv_heads, group * length, -1), v)
    return _Part(top, shares.sum(axis=-1, keepdims=True), out.reshape(q.shape))


def _result(part: _Part, q: Array) -> Array:
    """[S, T, heads, D], as q is."""
    return (part.out / part.total).astype(q.dtype).transpose(0, 3, 1, 2, 4).reshape(q.shape)
