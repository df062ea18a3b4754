"""Attention within packed rows: a tile of tokens looks only at the tiles that hold something it may see.

The cost follows what is seen, Σ length² over the segments of a row, whatever the row's length; shapes
don't depend on where segments lie. Does not know layers, weights or caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tunix_core.models.attention import attend, bias_of

Array = jax.Array
TILE = 64  # tokens: fewer make products too small for the machine, more see too much that they may not
LOTS = 4  # into which a row's tiles are sorted


class Tiles(NamedTuple):
    """Rows of T tokens cut into B tiles, and the tiles sorted into G lots of M: those that see fewest first.

    Attributes:
        positions, seen_until: int32 [R, B, TILE].
        queries: int32 [R, G, M]; the tiles of each lot, B where there is none.
        keys: int32 [R, G, M, B]; the tiles that each of them sees, B after the last.
        width: int32 [G]; the index in `widths(B)` of how many a lot looks at.
        window: a token sees only so many positions back, its own included; None: all.
    """

    positions: Array
    seen_until: Array
    queries: Array
    keys: Array
    width: Array
    window: int | None = None


def widths(tiles: int) -> tuple[int, ...]:
    """To how many tiles a lot may look: 1, 2, 3, 4, 6, 8, 12 … and all."""
    steps = (base << power for power in range(tiles.bit_length()) for base in (2, 3))
    return tuple(sorted({1, tiles, *(step for step in steps if step < tiles)}))


def make_tiles(positions: Array, seen_until: Array) -> Tiles:
    """positions, seen_until int32 [R, T] -> who looks where.

    A tile sees an earlier one when one of that one's tokens is seen beyond this one's start.
    """
    length = positions.shape[1]
    size = min(TILE, length)
    count = -(-length // size)
    each = -(-count // LOTS)
    positions, seen_until = (_cut(a, size) for a in (positions, seen_until))
    number = jnp.arange(count)
    reached = jnp.max(seen_until, axis=2)[:, None, :] > number[:, None] * size
    seen = (reached & (number[None, :] < number[:, None])) | jnp.eye(count, dtype=bool)
    how_many = jnp.sum(seen, axis=2, dtype=jnp.int32)
    keys = jnp.sort(jnp.where(seen, number, count), axis=2)
    queries = jnp.argsort(how_many, axis=1)
    queries = jnp.pad(queries, ((0, 0), (0, -count % each)), constant_values=count).reshape(len(queries), -1, each)
    most = jnp.max(_take(how_many, queries), axis=(0, 2))
    width = jnp.searchsorted(jnp.asarray(widths(count)), most)
    return Tiles(positions, seen_until, queries, _take(keys, queries), width)


def attend_tiles(q: Array, k: Array, v: Array, tiles: Tiles, scale: float) -> Array:
    """q [R, T, heads, D], k and v [R, T, kv_heads, D] -> [R, T, heads, D]."""
    rows, length, heads, head_dim = q.shape
    count, size = tiles.positions.shape[1:]
    q = _cut(q, size)
    k, v = (_cut(a, size).transpose(order) for a, order in ((k, (0, 1, 3, 4, 2)), (v, (0, 1, 3, 2, 4))))

    def looking(width: int) -> Callable[[Array, Array], Array]:
        def lot(queries: Array, keys: Array) -> Array:
            keys = keys[..., :width]
            near = _take(k, keys).transpose(0, 1, 3, 4, 2, 5), _take(v, keys).transpose(0, 1, 3, 2, 4, 5)
            bias = bias_of(_visible(tiles, queries, keys))
            flat = (-1, k.shape[2])
            return attend(
                _take(q, queries).reshape(-1, size, heads, head_dim),
                near[0].reshape(*flat, head_dim, width * size),
                near[1].reshape(*flat, width * size, head_dim),
                bias.reshape(-1, size, width * size),
                scale,
            )

        return lot

    out = _by_lot(tiles, [looking(width) for width in widths(count)])
    out = out.reshape(rows, -1, size, heads, head_dim)
    place = jnp.argsort(tiles.queries.reshape(rows, -1), axis=1)[:, :count]
    return _take(out, place).reshape(rows, -1, heads, head_dim)[:, :length]


def _by_lot(tiles: Tiles, looking: list[Callable[[Array, Array], Array]]) -> Array:
    """Each lot at the narrowest width that is enough for it: [R, G, ...]. Its shares are computed again in backward."""
    queries, keys = (jnp.moveaxis(a, 1, 0) for a in (tiles.queries, tiles.keys))
    if len(looking) == 1:
        return looking[0](queries[0], keys[0])[:, None]
    lots = tuple(map(jax.checkpoint, looking))
    _, out = jax.lax.scan(
        lambda _, lot: (None, jax.lax.switch(lot[0], lots, *lot[1:])), None, (tiles.width, queries, keys)
    )
    return jnp.moveaxis(out.reshape(*queries.shape, *out.shape[2:]), 0, 1)


def _visible(tiles: Tiles, queries: Array, keys: Array) -> Array:
    """queries [R, M], keys [R, M, W] -> bool [R, M, TILE, W · TILE]: what each token may see."""
    size = tiles.positions.shape[2]
    within = jnp.arange(size)
    at = (queries[..., None] * size + within)[..., None]
    there = (keys[..., None] * size + within).reshape(*queries.shape, 1, -1)
    until = jnp.pad(tiles.seen_until, ((0, 0), (0, 1), (0, 0)))  # nothing sees the tile after the last
    visible = (there <= at) & (at < _take(until, keys).reshape(there.shape))
    if tiles.window is None:
        return visible
    here, back = _take(tiles.positions, queries)[..., None], _take(tiles.positions, keys).reshape(there.shape)
    return visible & (here - back < tiles.window)


def _cut(a: Array, size: int) -> Array:
    """[R, T, ...] -> [R, B, size, ...], zeros in the end."""
    padding = [(0, 0)] * a.ndim
    padding[1] = 0, -a.shape[1] % size
    return jnp.pad(a, padding).reshape(a.shape[0], -1, size, *a.shape[2:])


def _take(a: Array, indices: Array) -> Array:
    """a [R, B, ...] at indices [R, ...] of its second axis, row by row; an index past the end is the last."""
    return jax.vmap(lambda row, at: jnp.take(row, at, axis=0, mode="clip"))(a, indices)
