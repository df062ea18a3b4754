"""Attention by tiles against attention over whole rows, for rows of any trees."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.models.tile_attention import attend_tiles
from tunix_core.models.tiles import LOTS, TILE, make_tiles, widths

HEADS, KV_HEADS, SIZE = 4, 2, 8


def tree_row(rng: np.random.Generator, length: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """positions and seen_until of a row: segments, some with branches that share their beginning, and padding."""
    at, until, start = np.zeros(length, np.int32), np.zeros(length, np.int32), 0
    while start < length - longest:
        prefix, branches = int(rng.integers(1, longest)), rng.integers(1, longest // 2, int(rng.integers(0, 4)))
        end = min(start + prefix + int(branches.sum()), length)
        at[start : start + prefix] = np.arange(prefix)
        until[start:end] = end
        first = start + prefix
        for size in branches:
            last = min(first + int(size), length)
            at[first:last] = prefix + np.arange(last - first)
            until[first:last] = last
            first = last
        start = end
    return at, until


def rows(seed: int, length: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = [tree_row(rng, length, longest) for _ in range(2)]
    return np.stack([at for at, _ in found]), np.stack([until for _, until in found])


def dense(q: Any, k: Any, v: Any, at: Any, until: Any, window: int | None) -> Any:
    column = np.arange(at.shape[1])
    mask = (column[None, :] <= column[:, None]) & (column[None, :, None] < until[:, None, :])
    if window is not None:
        mask &= at[:, :, None] - at[:, None, :] < window
    k, v = (jnp.repeat(a, HEADS // KV_HEADS, axis=2) for a in (k, v))
    scores = jnp.where(mask[:, None], jnp.einsum("rthd,rshd->rhts", q * 0.3, k), -1e30)
    return jnp.einsum("rhts,rshd->rthd", jax.nn.softmax(scores), v)


@pytest.mark.parametrize(
    ("length", "longest", "window"),
    [(40, 12, None), (TILE * LOTS + 30, 90, None), (TILE * LOTS + 30, 90, 20)],
    ids=["one tile", "many tiles", "a window"],
)
def test_tiles_give_what_whole_rows_give(length: int, longest: int, window: int | None) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((2, length, h, SIZE), np.float32)) for h in (HEADS, KV_HEADS, KV_HEADS))
    weights = rng.standard_normal(q.shape).astype(np.float32)

    def by_tiles(q: Any, k: Any, v: Any, at: Any, until: Any) -> Any:
        return attend_tiles(q, k, v, make_tiles(at, until), 0.3, window)

    def whole(q: Any, k: Any, v: Any, at: Any, until: Any) -> Any:
        return dense(q, k, v, at, until, window)

    def pulled(fn: Any) -> Any:
        def run(q: Any, k: Any, v: Any, at: Any, until: Any) -> Any:
            out, back = jax.vjp(lambda *x: fn(*x, at, until), q, k, v)
            return out, back(weights * (until > 0)[..., None, None])

        return jax.jit(run)

    tiled, expected = pulled(by_tiles), pulled(whole)
    for seed in range(3):
        at, until = rows(seed, length, longest)
        found, wanted = tiled(q, k, v, at, until), expected(q, k, v, at, until)
        real = until > 0
        np.testing.assert_allclose(found[0][real], wanted[0][real], atol=1e-5)
        for a, b in zip(found[1], wanted[1], strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)


def test_a_tile_looks_at_no_more_tiles_than_it_sees() -> None:
    """Segments of 64 to 192 in rows of 1,024: a third of what whole rows cost."""
    rng = np.random.default_rng(0)
    until = np.zeros((4, 1024), np.int32)
    for row in until:
        start = 0
        while start < 1024 - 192:
            end = start + int(rng.integers(64, 192))
            row[start:end] = end
            start = end
    tiles = make_tiles(jnp.zeros_like(until), jnp.asarray(until))
    looked = np.asarray(widths(16))[np.asarray(tiles.width)]
    assert looked.max() <= 4
    assert looked.mean() < 3
    assert sorted(np.asarray(tiles.queries)[0].ravel()) == list(range(16))


def test_widths_reach_all_tiles_in_small_steps() -> None:
    for tiles in range(1, 40):
        found = widths(tiles)
        assert found[0] == 1 and found[-1] == tiles
        assert all(b <= max(a + 1, 1.5 * a) for a, b in pairwise(found))
