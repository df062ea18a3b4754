"""Attention within packed rows: a tile of tokens looks only at the tiles that hold something it may see.

The cost follows what is seen, Σ length² over the segments of a row, whatever the row's length. Scores exist for one lot
of tiles at a time, and are computed again in backward from their logarithmic sums (Dao et al., 2022, "FlashAttention",
section 3.1). Does not know layers, weights or caches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tunix_core.models.layers import matmul
from tunix_core.models.pieces import MASKED
from tunix_core.models.tiles import Tiles, cut, visible, widths

Array = jax.Array
Lot = Callable[[Array, Array, Any], Any]  # (queries [R, M], keys [R, M, W], what is summed up) -> that, and its result


def attend_tiles(q: Array, k: Array, v: Array, tiles: Tiles, scale: float, window: int | None = None) -> Array:
    """q [R, T, heads, D], k and v [R, T, kv_heads, D] -> [R, T, heads, D].

    Args:
        window: as in `visible`.
    """
    rows, length, heads, head_dim = q.shape
    count, size = tiles.positions.shape[1:]
    kv_heads, group = k.shape[2], heads // k.shape[2]
    q = cut(q * scale, size).reshape(rows, count, size, kv_heads, group, head_dim).transpose(0, 3, 1, 4, 2, 5)
    k, v = (cut(a, size).transpose(0, 3, 1, 2, 4) for a in (k, v))
    out: Array = _attend(window, q.reshape(rows, kv_heads, count, group * size, head_dim), k, v, tiles)
    out = out.reshape(rows, kv_heads, count, group, size, head_dim).transpose(0, 2, 4, 1, 3, 5)
    return out.reshape(rows, -1, heads, head_dim)[:, :length]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(window: int | None, q: Array, k: Array, v: Array, tiles: Tiles) -> Array:
    """q [R, kv_heads, B, N, D], of N queries, TILE for each of a group of heads; k and v [R, kv_heads, B, TILE, D]."""
    return _forward(window, q, k, v, tiles)[0]


def _forward(window: int | None, q: Array, k: Array, v: Array, tiles: Tiles) -> tuple[Array, Any]:
    def lot(queries: Array, keys: Array, _: Any) -> tuple[Any, tuple[Array, Array]]:
        scores = _scores(_tiles(q, queries), _joined(k, keys), visible(tiles, queries, keys, window))
        most = jnp.max(scores, axis=-1, keepdims=True)
        shares = jnp.exp(scores - most)
        total = jnp.sum(shares, axis=-1, keepdims=True)
        out = matmul(shares.astype(v.dtype), _joined(v, keys)) / total
        return None, (out.astype(v.dtype), (most + jnp.log(total))[..., 0])

    out, total = _by_lot(tiles, lot, None)[1]
    return out, (q, k, v, tiles, out, total)


def _backward(window: int | None, kept: Any, slope: Array) -> tuple[Array, Array, Array, None]:
    """d scores = shares · (d shares − Σ slope · out), since Σ shares · d shares is Σ slope · out."""
    q, k, v, tiles, out, total = kept
    common = jnp.sum(slope.astype(jnp.float32) * out, axis=-1)

    def lot(queries: Array, keys: Array, sums: tuple[Array, Array]) -> tuple[Any, Array]:
        own, near, given = _tiles(q, queries), _joined(k, keys), _tiles(slope, queries)
        scores = _scores(own, near, visible(tiles, queries, keys, window))
        shares = jnp.exp(scores - _tiles(total, queries)[..., None])
        by_share = matmul(given, _joined(v, keys).mT) - _tiles(common, queries)[..., None]
        by_score = (shares * by_share).astype(q.dtype)
        by_k, by_v = matmul(by_score.mT, own), matmul(shares.astype(v.dtype).mT, given)
        return (_add(sums[0], keys, by_k), _add(sums[1], keys, by_v)), matmul(by_score, near).astype(q.dtype)

    zeros = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    (by_k, by_v), by_q = _by_lot(tiles, lot, zeros)
    return by_q, by_k.astype(k.dtype), by_v.astype(v.dtype), None


_attend.defvjp(_forward, _backward)


def _by_lot(tiles: Tiles, lot: Lot, start: Any) -> tuple[Any, Any]:
    """Each lot at the narrowest width that is enough for it: what they sum up to, and [R, kv_heads, B, ...] of each."""
    count = tiles.positions.shape[1]
    queries, keys = (jnp.moveaxis(a, 1, 0) for a in (tiles.queries, tiles.keys))

    def at_width(width: int) -> Lot:
        return lambda queries, keys, sums: lot(queries, keys[..., :width], sums)

    lots = list(map(at_width, widths(count)))
    sums, found = jax.lax.scan(
        lambda sums, one: jax.lax.switch(one[0], lots, *one[1:], sums), start, (tiles.width, queries, keys)
    )
    place = jnp.argsort(tiles.queries.reshape(len(tiles.queries), -1), axis=1)[:, :count]

    def whole(each: Array) -> Array:
        joined = jnp.moveaxis(each, 0, 2)
        return _tiles(joined.reshape(*joined.shape[:2], -1, *joined.shape[4:]), place)

    return sums, jax.tree.map(whole, found)


def _scores(q: Array, k: Array, seen: Array) -> Array:
    """q [R, kv_heads, M, N, D], k [R, kv_heads, M, L, D], seen [R, M, TILE, L] -> float32 [R, kv_heads, M, N, L]."""
    scores, (size, length) = matmul(q, k.mT), seen.shape[2:]
    bias = jnp.where(seen, 0.0, MASKED)[:, None, :, None]
    return (scores.reshape(*scores.shape[:3], -1, size, length) + bias).reshape(scores.shape)


def _tiles(a: Array, tiles: Array) -> Array:
    """a [R, kv_heads, B, ...] at tiles [R, M] -> [R, kv_heads, M, ...]."""
    return jax.vmap(lambda row, at: jnp.take(row, at, axis=1, mode="clip"))(a, tiles)


def _joined(a: Array, keys: Array) -> Array:
    """a [R, kv_heads, B, TILE, D] at keys [R, M, W] -> [R, kv_heads, M, W · TILE, D]."""
    found = _tiles(a, keys)
    return found.reshape(*found.shape[:3], -1, a.shape[-1])


def _add(sums: Array, keys: Array, each: Array) -> Array:
    """What `_joined` took apart, added to sums [R, kv_heads, B, TILE, D]."""
    apart = each.reshape(*each.shape[:2], *keys.shape[1:], *sums.shape[3:])
    return jax.vmap(lambda row, at, x: row.at[:, at].add(x, mode="drop"))(sums, keys, apart)
