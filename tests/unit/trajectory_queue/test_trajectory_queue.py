"""The queue: bounded, whole, stale trajectories dropped and counted, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.trajectory_queue import TrajectoryQueue
from tunix_core.types import Group, SampleId, Score, Task, TokenSpan, Trajectory, staleness, within_bound


def member(versions: Sequence[int], *, suite: str = "s", index: int = 0, sample: int = 0) -> Trajectory:
    """A trajectory whose tokens were sampled by these versions."""
    ids = np.zeros(len(versions), np.int32)
    sampled = TokenSpan(ids, True, np.zeros(len(ids), np.float32), np.asarray(versions, np.int32))
    spans = (TokenSpan.forced([1, 2]), sampled)
    return Trajectory(SampleId(suite, index, sample), "x/env", Task("t"), 0, spans, score=Score(float(sample)))


def group(index: int, *members: Sequence[int], suite: str = "s") -> Group:
    made = tuple(member(v, suite=suite, index=index, sample=i) for i, v in enumerate(members or ([0], [0])))
    return Group(suite, index, Task(f"t{index}"), made)


def queue(capacity: int = 8, max_staleness: int = 2, **fields: Any) -> tuple[TrajectoryQueue, list[Group]]:
    returned: list[Group] = []
    return TrajectoryQueue(capacity, max_staleness, returned.append, **fields), returned


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test

    asyncio.run(bounded())


async def settle() -> None:
    """Lets every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_first_in_first_out_among_the_wanted() -> None:
    async def test() -> None:
        waiting, _ = queue()
        for g in (group(0, suite="a"), group(0, suite="b"), group(1, suite="a")):
            await waiting.put(g)
        taken = [waiting.take({"b"}, 0), waiting.take({"a", "b"}, 0), waiting.take({"a"}, 0), waiting.take({"a"}, 0)]
        assert [(g.suite, g.index) if g else None for g in taken] == [("b", 0), ("a", 0), ("a", 1), None]

    run(test())


def test_get_waits_for_a_wanted_group() -> None:
    async def test() -> None:
        waiting, _ = queue()
        getting = asyncio.create_task(waiting.get({"b"}, 0))
        await waiting.put(group(0, suite="a"))
        await settle()
        assert not getting.done()
        await waiting.put(group(5, suite="b"))
        assert (await getting).index == 5

    run(test())


def test_put_waits_while_the_suite_is_full_and_drops_nothing() -> None:
    async def test() -> None:
        waiting, _ = queue(capacity=2)
        putting = [asyncio.create_task(waiting.put(group(i))) for i in range(5)]
        await settle()
        assert [task.done() for task in putting] == [True, True, False, False, False]
        assert [(await waiting.get({"s"}, 0)).index for _ in range(5)] == [0, 1, 2, 3, 4]
        await asyncio.gather(*putting)

    run(test())


def test_a_full_suite_keeps_no_other_out() -> None:
    async def test() -> None:
        waiting, _ = queue(capacity=1)
        await waiting.put(group(0, suite="fast"))
        blocked = asyncio.create_task(waiting.put(group(1, suite="fast")))
        await settle()
        await waiting.put(group(0, suite="slow"))
        found = waiting.take({"slow"}, 0)
        assert found is not None
        assert not blocked.done()
        assert waiting.take({"fast"}, 0) is not None
        await blocked

    run(test())


def test_a_cancelled_put_leaves_nothing_behind() -> None:
    async def test() -> None:
        waiting, _ = queue(capacity=1)
        await waiting.put(group(0))
        putting = asyncio.create_task(waiting.put(group(1)))
        await settle()
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)
        assert [waiting.take({"s"}, 0) is not None for _ in range(2)] == [True, False]

    run(test())


def test_what_is_too_stale_is_dropped_whole_and_the_rest_goes_on() -> None:
    """One token beyond the bound drops the trajectory; the bound itself is within."""

    async def test() -> None:
        waiting, returned = queue(max_staleness=2)
        await waiting.put(group(0, [5, 5], [3, 5], [2, 5, 5], [4]))
        found = await waiting.get({"s"}, 5)
        assert [t.id.sample for t in found.trajectories] == [0, 1, 3]
        assert not returned
        assert waiting.statistics()["dropped_trajectories"] == 1

    run(test())


def test_a_group_with_too_few_left_goes_back_whole_and_the_next_is_given() -> None:
    async def test() -> None:
        waiting, returned = queue(max_staleness=0, min_group={"s": 3})
        stale, fresh = group(0, [1], [1], [0], [0]), group(1, [1], [1], [1])
        await waiting.put(stale)
        await waiting.put(fresh)
        assert await waiting.get({"s"}, 1) is fresh
        assert returned == [stale]
        statistics = waiting.statistics()
        assert (statistics["dropped_trajectories"], statistics["returned_groups"], statistics["taken"]) == (2, 1, 1)

    run(test())


def test_one_without_a_score_is_no_survivor() -> None:
    async def test() -> None:
        waiting, returned = queue(max_staleness=0)
        made = group(0, [1], [1], [0])
        unscored = replace(made.trajectories[0], score=Score(None))
        await waiting.put(replace(made, trajectories=(unscored, *made.trajectories[1:])))
        assert waiting.take({"s"}, 1) is None
        assert len(returned) == 1

    run(test())


def test_time_in_the_queue_counts() -> None:
    async def test() -> None:
        waiting, returned = queue(max_staleness=2)
        await waiting.put(group(0, [0], [0]))
        await waiting.put(group(1, [0], [0]))
        assert waiting.take({"s"}, 2) is not None
        assert waiting.take({"s"}, 3) is None
        assert [g.index for g in returned] == [1]

    run(test())


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(0, 4))
def test_no_token_beyond_the_bound_is_ever_given(members: list[list[int]], bound: int) -> None:
    async def test() -> None:
        waiting, returned = queue(max_staleness=bound)
        await waiting.put(group(0, *members))
        found = waiting.take({"s"}, 9)
        kept = [m for m in members if all(staleness(9, v) <= bound for v in m)]
        assert (found is None) == (len(kept) < len(members) and len(kept) < 2)
        assert len(returned) == (found is None)
        if found is not None:
            assert len(found.trajectories) == len(kept)
            assert all(within_bound(t.oldest_version or 0, 9, bound) for t in found.trajectories)

    run(test())


def test_ordered_gives_each_suite_in_the_order_of_its_index() -> None:
    async def test() -> None:
        waiting, _ = queue(ordered=True, first={"s": 3})
        getting = asyncio.create_task(waiting.get({"s"}, 0))
        await waiting.put(group(5))
        await waiting.put(group(4))
        await settle()
        assert not getting.done()
        await waiting.put(group(3))
        assert (await getting).index == 3
        assert [(await waiting.get({"s"}, 0)).index for _ in range(2)] == [4, 5]
        with pytest.raises(ValueError, match="s#4 came after its turn; next is 6"):
            await waiting.put(group(4))

    run(test())


def test_ordered_the_group_whose_turn_it_is_finds_room_in_a_full_queue() -> None:
    async def test() -> None:
        waiting, _ = queue(capacity=1, ordered=True)
        await waiting.put(group(1))
        await waiting.put(group(0))
        assert [(await waiting.get({"s"}, 0)).index for _ in range(2)] == [0, 1]

    run(test())


def test_ordered_a_stale_group_keeps_its_turn() -> None:
    async def test() -> None:
        waiting, returned = queue(max_staleness=0, ordered=True)
        await waiting.put(group(0, [0], [0]))
        await waiting.put(group(1, [1], [1]))
        assert waiting.take({"s"}, 1) is None
        assert [g.index for g in returned] == [0]
        await waiting.put(group(0, [1], [1]))
        assert [(await waiting.get({"s"}, 1)).index for _ in range(2)] == [0, 1]

    run(test())


def test_ordered_a_group_that_will_never_come_is_passed_over() -> None:
    async def test() -> None:
        waiting, _ = queue(ordered=True)
        await waiting.put(group(3))
        waiting.skip("s", 2)
        waiting.skip("s", 0)
        getting = asyncio.create_task(waiting.get({"s"}, 0))
        await settle()
        assert not getting.done()
        waiting.skip("s", 1)
        assert (await getting).index == 3

    run(test())


def test_statistics() -> None:
    async def test() -> None:
        now = [10.0]
        waiting, _ = queue(clock=lambda: now[0])
        await waiting.put(group(0, suite="a"))
        now[0] = 12.0
        await waiting.put(group(0, suite="b"))
        now[0] = 15.0
        found = waiting.statistics()
        assert {k: found[k] for k in ("size", "size/a", "size/b", "put", "oldest_age_s")} == {
            "size": 2,
            "size/a": 1,
            "size/b": 1,
            "put": 2,
            "oldest_age_s": 5.0,
        }
        assert [g.suite for g in waiting.waiting()] == ["a", "b"]

    run(test())


@pytest.mark.parametrize(("capacity", "max_staleness"), [(0, 1), (1, -1)])
def test_bounds_that_are_none_are_refused(capacity: int, max_staleness: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        queue(capacity, max_staleness)
