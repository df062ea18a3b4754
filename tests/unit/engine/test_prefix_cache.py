"""The prefix cache's index: what it says is there, is there; what is old goes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.engine.prefix_cache import Match, PrefixCache

CHUNK = 3


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def put(cache: PrefixCache, tokens: np.ndarray) -> list[int | None]:
    keys = cache.keys(tokens)
    return [cache.insert(tokens, keys, index) for index in range(len(keys))]


def look(cache: PrefixCache, tokens: np.ndarray) -> Match:
    return cache.match(tokens, cache.keys(tokens))


def make(blocks: int = 8, *, aligned: bool = False) -> PrefixCache:
    return PrefixCache(blocks, CHUNK, aligned=aligned, version=0)


def test_a_longer_prefix_finds_its_whole_blocks() -> None:
    cache = make()
    first, second = put(cache, ids(1, 2, 3, 4, 5, 6))
    match = look(cache, ids(1, 2, 3, 4, 5, 6, 7))
    assert match.blocks == (first, second) and match.length == 6


def test_the_same_tokens_after_other_ones_are_another_block() -> None:
    cache = make()
    put(cache, ids(1, 2, 3, 4, 5, 6))
    assert look(cache, ids(9, 9, 9, 4, 5, 6)).length == 0


def test_another_version_misses() -> None:
    cache = make()
    put(cache, ids(1, 2, 3))
    old = cache.keys(ids(1, 2, 3))
    cache.clear(1)
    assert look(cache, ids(1, 2, 3)).length == 0
    put(cache, ids(1, 2, 3))
    assert cache.match(ids(1, 2, 3), old).missing == old[0]


@pytest.mark.parametrize(("aligned", "expected"), [(False, 5), (True, 3)])
def test_a_match_ends_inside_a_block_unless_aligned(aligned: bool, expected: int) -> None:
    cache = make(aligned=aligned)
    put(cache, ids(1, 2, 3, 4, 5, 6))
    assert look(cache, ids(1, 2, 3, 4, 5, 9)).length == expected


@pytest.mark.parametrize("aligned", [False, True])
def test_a_whole_prefix_matches_inside_a_block_too(aligned: bool) -> None:
    cache = make(aligned=aligned)
    numbers = put(cache, ids(1, 2, 3, 4, 5, 6))
    match = look(cache, ids(1, 2, 3, 4))
    assert (match.blocks, match.length) == (tuple(numbers), 4)


def test_a_block_that_continues_a_partial_one_takes_its_place() -> None:
    cache = make()
    put(cache, ids(1, 2))
    put(cache, ids(1, 2, 3))
    assert len(cache) == 1 and look(cache, ids(1, 2)).length == 2


def test_what_was_used_longest_ago_goes_first_and_leaves_before_its_parent() -> None:
    cache = make(blocks=3)
    put(cache, ids(1, 2, 3, 4, 5, 6))
    put(cache, ids(7, 7, 7))
    look(cache, ids(1, 2, 3, 4, 5, 6))
    put(cache, ids(8, 8, 8))  # evicts the sevens
    assert look(cache, ids(7, 7, 7)).length == 0
    assert look(cache, ids(1, 2, 3, 4, 5, 6)).length == 6
    look(cache, ids(8, 8, 8))
    put(cache, ids(9, 9, 9))  # evicts a leaf, not what it hangs on
    assert look(cache, ids(1, 2, 3, 4, 5, 6)).length == 3


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=10)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), tokens), max_size=40), st.integers(1, 6), st.booleans())
def test_every_matched_block_holds_the_tokens_it_stands_for(
    steps: list[tuple[bool, list[int]]], blocks: int, aligned: bool
) -> None:
    cache = make(blocks, aligned=aligned)
    pool: dict[int, tuple[int, ...]] = {}  # a block's number -> everything up to its end
    for inserts, values in steps:
        sequence = ids(*values)
        if inserts:
            for index, number in enumerate(put(cache, sequence)):
                if number is not None:
                    pool[number] = tuple(values[: (index + 1) * CHUNK])
        match = look(cache, sequence)
        assert len(cache) <= blocks and match.length <= len(values)
        for index, number in enumerate(match.blocks):
            end = min(match.length, (index + 1) * CHUNK)
            assert pool[number][:end] == tuple(values[:end])
            assert len(pool[number]) > index * CHUNK
        if aligned:
            assert match.length == len(values) or match.length % CHUNK == 0
