"""Constructors run in threads, several a hop; one that hangs holds up nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tunix_core.envs.building import Builder
from tunix_core.envs.lanes import Lanes
from tunix_core.envs.waiting import Tally
from tunix_core.errors import EnvError


def run(
    main: Callable[[Builder, Lanes], Coroutine[Any, Any, None]], places: int = 2, tally: Tally | None = None
) -> Lanes:
    async def inside() -> Lanes:
        lanes = Lanes("test/builds", places, tally or Tally())
        builder = Builder(lanes)
        async with asyncio.timeout(30):
            await main(builder, lanes)
        await builder.aclose()
        lanes.end()
        return lanes

    return asyncio.run(inside())


def test_what_is_asked_for_together_is_built_in_one_thread() -> None:
    threads: list[str] = []

    async def main(builder: Builder, lanes: Lanes) -> None:
        jobs = [builder.begin(lambda: threads.append(threading.current_thread().name)) for _ in range(20)]
        await asyncio.gather(*(job.done for job in jobs))

    assert run(main).made == 1
    assert len(threads) == 20 and len(set(threads)) == 1 and threads[0] != threading.current_thread().name


def test_a_constructor_that_hangs_holds_up_nobody_else() -> None:
    release = threading.Event()

    async def main(builder: Builder, lanes: Lanes) -> None:
        hanging = builder.begin(lambda: release.wait(30))
        other = builder.begin(lambda: None)
        await other.done
        assert not hanging.done.done()
        lane = builder.give_up(hanging)
        assert lane is not None, "the thread in it is the caller's"
        closed = lane.submit(lambda: "closed")
        lane.end()
        assert not closed.done()
        release.set()
        assert await asyncio.wrap_future(closed) == "closed"
        await builder.begin(lambda: None).done
        lane.join(30)
        assert not lane.alive

    assert run(main).made == 2


def test_what_nobody_waits_for_any_more_is_not_built() -> None:
    release, built = threading.Event(), []

    async def main(builder: Builder, lanes: Lanes) -> None:
        first, second = (
            builder.begin(lambda: release.wait(30)),
            builder.begin(lambda: built.append(1)),
        )
        assert builder.give_up(second) is None
        second.done.cancel()
        await asyncio.sleep(0)
        release.set()
        await first.done
        await builder.begin(lambda: None).done

    run(main, places=1)
    assert not built


def test_what_a_constructor_raises_is_its_own() -> None:
    async def main(builder: Builder, lanes: Lanes) -> None:
        def broken() -> None:
            raise KeyError("no such map")

        def ends() -> None:
            raise SystemExit(3)

        jobs = [builder.begin(broken), builder.begin(lambda: None), builder.begin(ends)]
        with pytest.raises(KeyError, match="no such map"):
            await jobs[0].done
        await jobs[1].done
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            await jobs[2].done

    run(main)


def test_when_every_thread_hangs_whoever_asks_is_told() -> None:
    begun, release, tally = threading.Event(), threading.Event(), Tally()

    def hang() -> None:
        begun.set()
        release.wait(30)

    async def main(builder: Builder, lanes: Lanes) -> None:
        hanging = builder.begin(hang)
        await asyncio.to_thread(begun.wait, 30)
        lane = builder.give_up(hanging)
        assert lane is not None
        tally.abandoned.add(lane)
        lanes.abandoned("env.open took too long")
        with pytest.raises(EnvError, match=r"calls of test/builds hang.*env\.open took too long"):
            await builder.begin(lambda: None).done
        release.set()
        lane.end()

    run(main, places=1, tally=tally)
