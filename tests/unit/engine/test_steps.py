"""The device programs, over a model whose cache can be read."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.engine.engine import PIECES, pieces_of
from tunix_core.engine.layout import Layout
from tunix_core.engine.sampling import Settings
from tunix_core.engine.steps import NONE, Live, Programs, Sizes, Slotwise, compile_programs, length_axes
from tunix_core.errors import EngineError

SIZES = Sizes(slots=4, pieces=(8, 4), chunk=4, rows=(2,), steps=4, blocks=5, moves=3, stops=2)


@pytest.fixture(scope="module")
def programs(kit: Any) -> Programs:
    return compile_programs(kit.counter, kit.counter.init(0), SIZES, Layout(None, {}, slots=4), lambda *_: None)


def cache_of(kit: Any, seed: int | None = None) -> Any:
    """The cache in its pieces, of zeros or anything."""
    if seed is None:
        return tuple(kit.counter.init_cache(4, length) for length in SIZES.pieces)
    whole = np.random.default_rng(seed).integers(0, 64, (4, 2, 12)).astype(np.int32)
    return tuple({"tokens": jnp.asarray(part)} for part in np.split(whole, [8], axis=-1))


def whole(cache: Any) -> np.ndarray:
    return np.concatenate([np.asarray(piece["tokens"]) for piece in cache], axis=-1)


def decode(kit: Any, programs: Programs, remaining: list[int], stops: Any = NONE) -> tuple[np.ndarray, np.ndarray]:
    ones = np.ones(4, np.float32)
    how = Settings(np.zeros((4, 2), np.uint32), ones, np.zeros(4, np.int32), ones, 0 * ones)
    live = Live(np.arange(10, 50, 10, np.int32), np.arange(4, dtype=np.int32), np.array(remaining, np.int32))
    slotwise = Slotwise(how, np.broadcast_to(np.int32(stops), (4, 2)).copy())
    cache, out = programs.decode(kit.counter.init(0), cache_of(kit), live, slotwise)
    return np.asarray(out), whole(cache)


def test_decode_stops_early_when_no_slot_has_tokens_left(kit: Any, programs: Programs) -> None:
    out, cache = decode(kit, programs, [0, 2, 1, 0])
    assert out[:, 0].tolist() == [[NONE, 21, 31, NONE], [NONE, 22, NONE, NONE], [NONE] * 4, [NONE] * 4]
    assert (cache[:, 1] == 2).all()  # calls of the model


def test_decode_writes_what_it_read_and_nothing_for_idle_slots(kit: Any, programs: Programs) -> None:
    _, cache = decode(kit, programs, [0, 2, 1, 0])
    expected = np.zeros((4, 12), np.int32)
    expected[1, 1:3], expected[2, 2] = [20, 21], 30
    np.testing.assert_array_equal(cache[:, 0], expected)


def test_a_stop_token_ends_its_slot_alone(kit: Any, programs: Programs) -> None:
    out, cache = decode(kit, programs, [9, 9, 9, 9], stops=32)
    assert out[:, 0].T.tolist() == [[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, NONE, NONE], [41, 42, 43, 44]]
    assert (cache[:, 1] == 4).all()


def test_prefill_writes_its_rows_and_leaves_the_other_slots(kit: Any, programs: Programs) -> None:
    before = whole(cache_of(kit, seed=1))
    tokens = np.array([[1, 2, 3, 4], [5, 6, 0, 0]], np.int32)
    positions = np.array([[4, 5, 6, 7], [10, 11, 12, 12]], np.int32)
    cache = programs.prefill[2](
        kit.counter.init(0), cache_of(kit, seed=1), tokens, positions, np.array([3, 0], np.int32)
    )
    expected = before[:, 0].copy()
    expected[3, 4:8], expected[0, 10:12] = [1, 2, 3, 4], [5, 6]
    np.testing.assert_array_equal(whole(cache)[:, 0], expected)
    np.testing.assert_array_equal(whole(cache)[1:3], before[1:3])


@pytest.mark.parametrize(("second", "written"), [([6, 7, 8, 9], 8), ([12] * 4, 4)])
def test_prefill_writes_several_rows_of_one_slot_and_none_that_is_past_the_cache(
    kit: Any, programs: Programs, second: list[int], written: int
) -> None:
    expected = whole(cache_of(kit, seed=1))[:, 0].copy()
    expected[1, 2 : 2 + written] = np.arange(written)
    tokens, positions = np.arange(8, dtype=np.int32).reshape(2, 4), np.array([[2, 3, 4, 5], second], np.int32)
    cache = programs.prefill[2](
        kit.counter.init(0), cache_of(kit, seed=1), tokens, positions, np.array([1, 1], np.int32)
    )
    np.testing.assert_array_equal(whole(cache)[:, 0], expected)


def test_blocks_go_into_the_pool_and_come_back_elsewhere(kit: Any, programs: Programs) -> None:
    source = whole(cache_of(kit, seed=2))
    moves = np.array([[1, 4, 3], [2, 8, 0], [0, 0, 1]], np.int32)
    pool = programs.store(kit.counter.init_cache(5, 4), cache_of(kit, seed=2), moves, np.array([0, 1, 2], np.int32))
    held = np.asarray(pool["tokens"])
    np.testing.assert_array_equal(held[3], source[1, :, 4:8])
    np.testing.assert_array_equal(held[0], source[2, :, 8:12])
    assert not held[[1, 2, 4]].any()  # the third move was not counted

    back = np.array([[3, 0, 3], [3, 4, 0], [0, 0, 1]], np.int32)
    cache = whole(programs.load(cache_of(kit), pool, back, np.array([0, 2, 2], np.int32)))
    np.testing.assert_array_equal(cache[3], np.concatenate([source[1, :, 4:8], source[2, :, 8:12], 0 * held[0]], -1))
    assert not cache[:3].any()


def test_a_cache_without_an_axis_of_positions_is_refused(kit: Any) -> None:
    class Recurrent(type(kit.counter)):
        def init_cache(self, slots: int, length: int) -> Any:
            return {"state": jnp.zeros((slots, 7))}

    with pytest.raises(EngineError, match=r"shape \(4, 7\) for length 4"):
        length_axes(Recurrent(), SIZES)


@given(chunk=st.integers(1, 100), count=st.integers(1, 300))
def test_a_cache_lies_in_few_pieces_of_whole_chunks_each_at_most_as_long_as_all_before(chunk: int, count: int) -> None:
    pieces = pieces_of(chunk * count, chunk)
    assert sum(pieces) == chunk * count and not any(piece % chunk for piece in pieces)
    assert all(piece <= sum(pieces[:i]) for i, piece in enumerate(pieces) if i)
    assert len(pieces) <= max(PIECES, 2 + math.log2(sum(pieces) / pieces[0]))
