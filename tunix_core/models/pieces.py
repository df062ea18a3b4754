"""Attention over a cache that lies in pieces, as far as the longest conversation reaches.

A cache of one piece would cost its whole length at every step. In pieces, those that no token reaches are
skipped while the program runs, and a skipped piece gives exactly what one gives that is masked throughout:
what a slot gets doesn't depend, to the bit, on how far the others reach. S slots, R rows, T tokens, G query heads
a key and value head, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def write(cache: LayerCache, k: Array, v: Array, positions: Array, slots: Array) -> LayerCache:
    """k, v [R, T, kv_heads, D] put at positions [R, T] of slots [R]; those past the last piece are dropped."""
    start, keys, values = 0, [], []
    for key, value in zip(cache["k"], cache["v"], strict=True):
        length = key.shape[-1]
        here = jnp.where(positions < start, length, positions - start)  # a negative index would count from the end
        keys.append(key.at[slots[:, None], :, :, here].set(k, mode="drop"))
        values.append(value.at[slots[:, None], :, here].set(v, mode="drop"))
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
    slots: Array,
    lengths: Sequence[int],
    window: int | None,
) -> tuple[Array, LayerCache]:
    """Writes k, v [R, T, kv_heads, D] at positions [R, T] of slots [R]; then q [R, T, heads, D] attends to its slot's
    cache up to its own. Several rows may be of one slot: each sees what the others write. Rows that write nothing
    cost least when they come last.

    A token sees the last `window` positions alone if that is given. Both products run along rows that lie in memory
    as they are read: on a CPU, decoding a full batch of slots takes half the time it takes with keys and values
    [S, L, kv_heads, D].

    Returns:
        [R, T, heads, D], and the cache.
    """
    cache = write(cache, k, v, positions, slots)
    writes = (positions < sum(lengths)).any(axis=1)
    count = jnp.where(writes, 1 + jnp.arange(len(slots)), 0).max()

    def piece(i: int) -> tuple[Array, Array]:
        return _rows(cache["k"][i], slots, count), _rows(cache["v"][i], slots, count)

    grouped = _grouped(q * scale, k.shape[2])
    return _result(_look(grouped, piece, positions, 0, lengths, window), q), cache


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
    far = _look(grouped, lambda i: (cache["k"][i], cache["v"][i]), at, step + 1, lengths, window)
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
    q: Array,
    piece: Callable[[int], tuple[Array, Array]],
    positions: Array,
    nearest: Any,
    lengths: Sequence[int],
    window: int | None,
) -> _Part:
    """What the pieces, keys and values of each, give to tokens at positions [S, T], of what lies at least `nearest`
    positions back."""
    *starts, end = accumulate(lengths, initial=0)
    reach = jnp.where(positions < end, positions - nearest, -1).max()

    def from_piece(i: int, q: Array) -> _Part:
        part = _read(q, *piece(i), positions - starts[i], nearest, window)
        if i + 1 == len(starts):
            return part
        return _both(part, lax.cond(reach >= starts[i + 1], partial(from_piece, i + 1), _nothing, q))

    return from_piece(0, q)


def _rows(leaf: Array, slots: Array, count: Array) -> Array:
    """[R, ...]: what the first `count` of slots [R] have of [S, ...], and zeros. Slices in a loop, not a gather: they
    are copied whole, and compile once for all rows."""

    def take(row: Array, rows: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(rows, lax.dynamic_slice_in_dim(leaf, slots[row], 1, 0), row, 0)

    return lax.fori_loop(0, count, take, jnp.zeros((len(slots), *leaf.shape[1:]), leaf.dtype))


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
