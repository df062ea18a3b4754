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


class Consumer:
    """A queue, seen by one who takes groups of wanted suites and keeps what goes back."""

    def __init__(self, capacity: int = 8, max_staleness: int = 2, **fields: Any) -> None:
        self.queue = TrajectoryQueue(capacity, max_staleness, **fields)
        self.returned: list[Group] = []

    def take(self, wanted: str = "s", version: int = 0) -> Group | None:
        return self.queue.take(lambda g: g.suite in wanted, version, self.returned.append)

    async def get(self, wanted: str = "s", version: int = 0) -> Group:
        return await self.queue.get(lambda g: g.suite in wanted, version, self.returned.append)


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
        c = Consumer()
        for g in (group(0, suite="a"), group(0, suite="b"), group(1, suite="a")):
            await c.queue.put(g)
        taken = [c.take("b", 0), c.take("ab", 0), c.take("a", 0), c.take("a", 0)]
        assert [(g.suite, g.index) if g else None for g in taken] == [("b", 0), ("a", 0), ("a", 1), None]

    run(test())


def test_get_waits_for_a_wanted_group() -> None:
    async def test() -> None:
        c = Consumer()
        getting = asyncio.create_task(c.get("b", 0))
        await c.queue.put(group(0, suite="a"))
        await settle()
        assert not getting.done()
        await c.queue.put(group(5, suite="b"))
        assert (await getting).index == 5

    run(test())


def test_put_waits_while_the_suite_is_full_and_drops_nothing() -> None:
    async def test() -> None:
        c = Consumer(capacity=2)
        putting = [asyncio.create_task(c.queue.put(group(i))) for i in range(5)]
        await settle()
        assert [task.done() for task in putting] == [True, True, False, False, False]
        assert [(await c.get("s", 0)).index for _ in range(5)] == [0, 1, 2, 3, 4]
        await asyncio.gather(*putting)

    run(test())


def test_a_full_suite_keeps_no_other_out() -> None:
    async def test() -> None:
        c = Consumer(capacity=1)
        await c.queue.put(group(0, suite="f"))
        blocked = asyncio.create_task(c.queue.put(group(1, suite="f")))
        await settle()
        await c.queue.put(group(0, suite="l"))
        found = c.take("l", 0)
        assert found is not None
        assert not blocked.done()
        assert c.take("f", 0) is not None
        await blocked

    run(test())


def test_a_cancelled_put_leaves_nothing_behind() -> None:
    async def test() -> None:
        c = Consumer(capacity=1)
        await c.queue.put(group(0))
        putting = asyncio.create_task(c.queue.put(group(1)))
        await settle()
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)
        assert [c.take("s", 0) is not None for _ in range(2)] == [True, False]

    run(test())


def test_what_is_too_stale_is_dropped_whole_and_the_rest_goes_on() -> None:
    """One token beyond the bound drops the trajectory; the bound itself is within."""

    async def test() -> None:
        c = Consumer(max_staleness=2)
        await c.queue.put(group(0, [5, 5], [3, 5], [2, 5, 5], [4]))
        found = await c.get("s", 5)
        assert [t.id.sample for t in found.trajectories] == [0, 1, 3]
        assert not c.returned
        assert c.queue.statistics()["dropped_trajectories"] == 1

    run(test())


def test_a_group_with_too_few_left_goes_back_whole_and_the_next_is_given() -> None:
    async def test() -> None:
        c = Consumer(max_staleness=0, min_group={"s": 3})
        stale, fresh = group(0, [1], [1], [0], [0]), group(1, [1], [1], [1])
        await c.queue.put(stale)
        await c.queue.put(fresh)
        assert await c.get("s", 1) is fresh
        assert c.returned == [stale]
        statistics = c.queue.statistics()
        assert (statistics["dropped_trajectories"], statistics["returned_groups"], statistics["taken"]) == (0, 1, 1)

    run(test())


def test_one_without_a_score_is_no_survivor() -> None:
    async def test() -> None:
        c = Consumer(max_staleness=0)
        made = group(0, [1], [1], [0])
        unscored = replace(made.trajectories[0], score=Score(None))
        await c.queue.put(replace(made, trajectories=(unscored, *made.trajectories[1:])))
        assert c.take("s", 1) is None
        assert len(c.returned) == 1

    run(test())


def test_time_in_the_queue_counts() -> None:
    async def test() -> None:
        c = Consumer(max_staleness=2)
        await c.queue.put(group(0, [0], [0]))
        await c.queue.put(group(1, [0], [0]))
        assert c.take("s", 2) is not None
        assert c.take("s", 3) is None
        assert [g.index for g in c.returned] == [1]

    run(test())


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(0, 4))
def test_no_token_beyond_the_bound_is_ever_given(members: list[list[int]], bound: int) -> None:
    async def test() -> None:
        c = Consumer(max_staleness=bound)
        await c.queue.put(group(0, *members))
        found = c.take("s", 9)
        kept = [m for m in members if all(staleness(9, v) <= bound for v in m)]
        assert (found is None) == (len(kept) < len(members) and len(kept) < 2)
        assert len(c.returned) == (found is None)
        if found is not None:
            assert len(found.trajectories) == len(kept)
            assert all(within_bound(t.oldest_version or 0, 9, bound) for t in found.trajectories)

    run(test())


def test_what_is_accepted_may_change_while_one_waits() -> None:
    async def test() -> None:
        accepted: set[int] = set()
        waiting = TrajectoryQueue(8, 2)
        getting = asyncio.create_task(waiting.get(lambda g: g.index in accepted, 0, lambda _: None))
        await waiting.put(group(7))
        await settle()
        assert not getting.done()
        accepted.add(7)
        waiting.look_again()
        assert (await getting).index == 7

    run(test())


def test_a_stale_group_goes_back_even_while_nobody_wants_it() -> None:
    async def test() -> None:
        c = Consumer(max_staleness=0)
        await c.queue.put(group(0, [0], [0], suite="a"))
        assert c.take("b", 1) is None
        assert [g.suite for g in c.returned] == ["a"]
        assert c.queue.statistics()["size"] == 0

    run(test())


def test_statistics() -> None:
    async def test() -> None:
        now = [10.0]
        c = Consumer(clock=lambda: now[0])
        await c.queue.put(group(0, suite="a"))
        now[0] = 12.0
        await c.queue.put(group(0, suite="b"))
        now[0] = 15.0
        found = c.queue.statistics()
        assert {k: found[k] for k in ("size", "size/a", "size/b", "put", "oldest_age_s")} == {
            "size": 2,
            "size/a": 1,
            "size/b": 1,
            "put": 2,
            "oldest_age_s": 5.0,
        }
        assert [g.suite for g in c.queue.waiting()] == ["a", "b"]

    run(test())


@pytest.mark.parametrize(("capacity", "max_staleness"), [(0, 1), (1, -1)])
def test_bounds_that_are_none_are_refused(capacity: int, max_staleness: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        TrajectoryQueue(capacity, max_staleness)
