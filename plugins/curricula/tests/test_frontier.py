"""The frontier: draws follow the signal, from state and seed alone, and survive a restart."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunix_curricula.frontier import Frontier

from tunix_core import Task


@dataclass
class Source:
    """Tasks of difficulties 0 .. levels - 1, or without any; endless unless it has a length."""

    length: int | None = 60
    levels: int = 3

    def get(self, index: int) -> Task:
        return Task(f"t{index}", difficulty=index % self.levels if self.levels else None)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("endless")
        return self.length


def levels_drawn(curriculum: Frontier, source: Source, count: int = 600) -> Counter[int]:
    return Counter(curriculum.next_index(cursor, source.length) % source.levels for cursor in range(count))


def taught(source: Source, success: dict[int, float], groups: int = 200, **options) -> Frontier:
    """A frontier that has seen groups of 8, each level solved as often as `success` says."""
    curriculum, rng = Frontier(source, seed=1, **options), np.random.default_rng(0)
    for cursor in range(groups):
        index = curriculum.next_index(cursor, source.length)
        curriculum.observe(index, (rng.random(8) < success[index % source.levels]).astype(float).tolist())
    return curriculum


@pytest.mark.parametrize("length", [60, None])
def test_it_draws_what_is_solved_sometimes_and_never_forgets_the_rest(length):
    source = Source(length)
    drawn = levels_drawn(taught(source, {0: 1.0, 1: 0.5, 2: 0.0}), source)
    assert drawn[1] > 3 * drawn[0] and drawn[1] > 3 * drawn[2]
    assert drawn[0] > 10 and drawn[2] > 10


def test_it_moves_on_as_the_policy_improves():
    source = Source()
    curriculum = taught(source, {0: 0.5, 1: 0.0, 2: 0.0})
    before = levels_drawn(curriculum, source)
    for index in [0, 1, 2] * 100:
        curriculum.observe(index, [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]][index % 3])
    after = levels_drawn(curriculum, source)
    assert before.most_common(1)[0][0] == 0 and after.most_common(1)[0][0] == 1


def test_an_unseen_difficulty_is_tried_like_the_best():
    assert min(levels_drawn(Frontier(Source(), seed=0), Source()).values()) > 150


def test_scores_that_are_equal_carry_no_signal_wherever_they_lie():
    curriculum = Frontier(Source(levels=1), seed=0)
    for _ in range(300):
        curriculum.observe(0, [0.5, 0.5, 0.5])
    assert curriculum.chances()[0] == pytest.approx(0.1, abs=0.01)


def test_the_range_of_scores_is_an_option():
    curriculum = Frontier(Source(levels=1), seed=0, low=-1.0, high=1.0)
    for _ in range(300):
        curriculum.observe(0, [-1.0, 1.0])
    assert curriculum.chances()[0] == pytest.approx(1.0, abs=0.01)


@given(seed=st.integers(0, 2**64 - 1), cursors=st.lists(st.integers(0, 10**9), max_size=5), endless=st.booleans())
def test_a_draw_is_a_function_of_seed_cursor_and_state_and_lies_in_the_source(seed, cursors, endless):
    source = Source(None if endless else 60)
    for cursor in cursors:
        first, again = (Frontier(source, seed=seed).next_index(cursor, source.length) for _ in range(2))
        assert first == again >= 0
        assert endless or first < 60


def test_of_an_endless_source_nothing_comes_twice():
    curriculum = taught(Source(None), {0: 1.0, 1: 0.5, 2: 0.0})
    drawn = [curriculum.next_index(cursor, None) for cursor in range(500)]
    assert len(set(drawn)) == 500


def test_a_restored_one_draws_the_same():
    source = Source()
    curriculum, later = taught(source, {0: 1.0, 1: 0.5, 2: 0.0}), Frontier(source, seed=1)
    later.restore(json.loads(json.dumps(curriculum.state())))
    assert [curriculum.next_index(c, 60) for c in range(50)] == [later.next_index(c, 60) for c in range(50)]
    with pytest.raises(ValueError, match="divides difficulties"):
        Frontier(Source(levels=5), seed=1).restore(curriculum.state())


def test_many_difficulties_are_divided_evenly_and_none_is_one_bucket():
    many = Frontier(Source(1000, levels=1000), seed=0, buckets=4)
    counts = Counter(many._bucket(index) for index in range(1000))
    assert len(counts) == 4 and max(counts.values()) < 300
    assert Frontier(Source(levels=0), seed=0).next_index(5, 60) < 60


@pytest.mark.parametrize("options", [{"buckets": 0}, {"memory": 0}, {"floor": 0.0}, {"low": 1.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="must be at least 1"):
        Frontier(Source(), seed=0, **options)
