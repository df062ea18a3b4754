"""Packed rows in tiles: which tiles hold something that a tile of tokens may see.

Shapes don't depend on where segments lie. Does not know queries, keys or values.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

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
    """

    positions: Array
    seen_until: Array
    queries: Array
    keys: Array
    width: Array


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
    positions, seen_until = (cut(a, size) for a in (positions, seen_until))
    number = jnp.arange(count)
    reached = jnp.max(seen_until, axis=2)[:, None, :] > number[:, None] * size
    seen = (reached & (number[None, :] < number[:, None])) | jnp.eye(count, dtype=bool)
    how_many = jnp.sum(seen, axis=2, dtype=jnp.int32)
    keys = jnp.sort(jnp.where(seen, number, count), axis=2)
    queries = jnp.argsort(how_many, axis=1)
    queries = jnp.pad(queries, ((0, 0), (0, -count % each)), constant_values=count).reshape(len(queries), -1, each)
    most = jnp.max(take(how_many, queries), axis=(0, 2))
    width = jnp.searchsorted(jnp.asarray(widths(count)), most)
    return Tiles(positions, seen_until, queries, take(keys, queries), width)


def visible(tiles: Tiles, queries: Array, keys: Array, window: int | None = None) -> Array:
    """queries [R, M], keys [R, M, W] -> bool [R, M, TILE, W · TILE]: what each token may see.

    Args:
        window: a token sees only so many positions back, its own included; None: all.
    """
    size = tiles.positions.shape[2]
    within = jnp.arange(size)
    at = (queries[..., None] * size + within)[..., None]
    there = (keys[..., None] * size + within).reshape(*queries.shape, 1, -1)
    until = jnp.pad(tiles.seen_until, ((0, 0), (0, 1), (0, 0)))  # nothing sees the tile after the last
    seen = (there <= at) & (at < take(until, keys).reshape(there.shape))
    if window is None:
        return seen
    here, back = take(tiles.positions, queries)[..., None], take(tiles.positions, keys).reshape(there.shape)
    return seen & (here - back < window)


def cut(a: Array, size: int) -> Array:
    """[R, T, ...] -> [R, B, size, ...], zeros in the end."""
    padding = [(0, 0)] * a.ndim
    padding[1] = 0, -a.shape[1] % size
    return jnp.pad(a, padding).reshape(a.shape[0], -1, size, *a.shape[2:])


def take(a: Array, indices: Array) -> Array:
    """a [R, B, ...] at indices [R, ...] of its second axis, row by row; an index past the end is the last."""
    return jax.vmap(lambda row, at: jnp.take(row, at, axis=0, mode="clip"))(a, indices)
