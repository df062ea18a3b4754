"""A run in which nothing moves ends, and says where everybody was. Virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from tunix_core.errors import Stalled
from tunix_core.profiling import Recorder, recording, span
from tunix_core.run.in_flight import in_flight
from tunix_core.run.stall import StallWatch
from tunix_core.testing.clock import run

ROOMS = {"scheduler": {"groups_running": 2, "oldest_group_s": 7.5}, "queue": {"size": 0}}


class Seen:
    """What is known of a run."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.episodes = recorder, 0


def watch_of(recorder: Recorder, timeout_s: float) -> StallWatch:
    return StallWatch(timeout_s, Seen(recorder), lambda: ROOMS, clock=asyncio.get_running_loop().time)


async def episode(sample: int, where: str, **tags: int) -> None:
    with span("episode", suite="games/lake", group=4, sample=sample, attempt=0), span(where, **tags):
        await asyncio.Event().wait()


def test_a_stalled_run_tells_every_rooms_state(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(episode(0, "env.step", turn=2))
            group.create_task(episode(1, "engine.generate", turn=0))
            group.create_task(episode(2, "reward"))
            with span("wait.groups"):
                await asyncio.Event().wait()

    async def main() -> None:
        with recording() as recorder:
            await watch_of(recorder, 60.0).over(work())

    with caplog.at_level(logging.ERROR), pytest.raises(Stalled) as caught:
        run(main())
    said = str(caught.value)
    for words in (
        "scheduler.stall_timeout_s",
        "scheduler: groups_running 2, oldest_group_s 7.5",
        "queue: size 0",
        "wait.groups: 1",
        "episodes in flight: 3",
        "games/lake#4.0.0",
        "in env.step (turn 2) for",
        "in engine.generate (turn 0) for",
        "in reward for",
    ):
        assert words in said
    assert "the run has stalled" in caplog.text


def test_progress_puts_the_end_off() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        with recording() as recorder:
            watch = watch_of(recorder, 60.0)

            async def work() -> float:
                for _ in range(10):
                    await asyncio.sleep(50.0)
                    watch.progress()
                return loop.time()

            return await watch.over(work())

    assert run(main()) == pytest.approx(500.0)


def test_an_episode_that_ends_is_progress() -> None:
    async def main() -> None:
        with recording() as recorder:
            seen = Seen(recorder)

            async def work() -> None:
                for _ in range(10):
                    await asyncio.sleep(50.0)
                    seen.episodes += 1

            await StallWatch(60.0, seen, lambda: ROOMS, clock=asyncio.get_running_loop().time).over(work())

    run(main())


def test_it_ends_soon_after_the_timeout_and_cancels_the_work() -> None:
    ended: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def work() -> None:
            try:
                await asyncio.sleep(1e5)
            finally:
                ended.append(loop.time())

        with recording() as recorder:
            await watch_of(recorder, 60.0).over(work())

    with pytest.raises(Stalled, match="nothing has moved for 6"):
        run(main(), timeout_s=1e6)
    assert 60.0 < ended[0] <= 66.0


def test_work_that_does_not_obey_is_left_behind() -> None:
    async def main() -> None:
        async def work() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e5)
            await asyncio.sleep(1e5)

        with recording() as recorder:
            await watch_of(recorder, 60.0).over(work())

    with pytest.raises(Stalled):
        run(main(), timeout_s=1e6)


def test_what_the_work_raises_comes_through() -> None:
    async def main() -> None:
        async def work() -> None:
            raise KeyError("mine")

        with recording() as recorder:
            await watch_of(recorder, 60.0).over(work())

    with pytest.raises(KeyError, match="mine"):
        run(main())


def test_episodes_are_listed_oldest_first_with_their_innermost_call() -> None:
    first, second = ({"suite": "s", "group": 1, "sample": sample, "attempt": 1 - sample} for sample in (0, 1))
    with recording() as recorder, span("group"), span("episode", **first), span("episode", **second), span("tool"):
        found = in_flight(recorder.open())
    assert [flight.name for flight in found] == ["s#1.0.1", "s#1.1.0"]
    assert [flight.where for flight in found] == ["", "tool"]
    assert found[0].age_s >= found[1].age_s >= found[1].there_s >= 0
