"""What the queue tells of waits: which barrier held the consumer, and how old a group was."""

from __future__ import annotations

import asyncio

from tunix_core.profiling import recording
from tunix_core.testing.clock import run
from tunix_core.trajectory_queue import TrajectoryQueue
from tunix_core.types import Group, Task


def test_a_wait_is_named_anew_whenever_something_comes() -> None:
    async def main() -> None:
        queue = TrajectoryQueue(8, 2, clock=asyncio.get_running_loop().time)
        getting = asyncio.create_task(
            queue.get(lambda g: g.suite == "b", 0, lambda g: None, lambda waiting: f"wait.{len(waiting)}")
        )
        for index, suite in enumerate("aab"):
            await asyncio.sleep(10.0)
            await queue.put(Group(suite, index, Task("t"), ()))
        assert (await getting).suite == "b"

    with recording() as recorder:
        run(main())
    assert [span.name for span in recorder.drain() if span.name != "queue"] == ["wait.0", "wait.1", "wait.2"]


def test_a_groups_age_in_the_queue_is_told_when_it_leaves() -> None:
    async def main() -> None:
        queue = TrajectoryQueue(8, 2, clock=asyncio.get_running_loop().time)
        await queue.put(Group("a", 7, Task("t"), ()))
        await asyncio.sleep(25.0)
        queue.take(lambda g: True, 0, lambda g: None)

    with recording() as recorder:
        run(main())
    (left,) = recorder.drain()
    assert (left.name, left.tags, round(left.duration_s, 3)) == ("queue", {"suite": "a", "group": 7}, 25.0)
