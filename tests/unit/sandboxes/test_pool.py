"""The pool: what was asked for at once is kept ready, and nothing is given twice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.errors import SandboxError
from tunix_core.sandboxes.demand import BURST_S, WINDOW_S, Demand
from tunix_core.sandboxes.pool import Pool
from tunix_core.testing import clock

MAKE_S = 1.0


class Factory:
    def __init__(self, fail: bool = False) -> None:
        self.made: list[int] = []
        self.discarded: list[int] = []
        self.broken: set[int] = set()
        self.fail = fail

    async def make(self, kind: str) -> int:
        await asyncio.sleep(MAKE_S)
        if self.fail:
            raise SandboxError("no engine")
        self.made.append(len(self.made))
        return self.made[-1]

    async def discard(self, item: int) -> None:
        self.discarded.append(item)

    def pool(self, most: int = 4) -> Pool[str, int]:
        return Pool(
            self.make, self.discard, lambda item: item not in self.broken, most, asyncio.get_running_loop().time
        )


def run(main: Coroutine[Any, Any, None]) -> None:
    clock.run(main, timeout_s=10_000)


@given(st.lists(st.floats(0, 300), max_size=30), st.integers(0, 8))
def test_the_target_is_the_largest_burst_of_late(times: list[float], most: int) -> None:
    demand, times = Demand(most), sorted(times)
    for time_s in times:
        demand.note(time_s)
    now_s = 300.0
    late = [time_s for time_s in times if time_s >= now_s - WINDOW_S]
    bursts = [sum(1 for other in late if time_s - BURST_S <= other <= time_s) for time_s in late]
    assert demand.target(now_s) <= min(most, max(bursts, default=0))
    assert (demand.target(now_s) > 0) == bool(late and most)


def test_a_second_burst_is_served_from_what_was_made_ahead() -> None:
    async def main() -> None:
        factory, loop = Factory(), asyncio.get_running_loop()
        pool = factory.pool()
        first = await asyncio.gather(*(pool.take("a") for _ in range(4)))
        await asyncio.sleep(10)
        assert pool.waiting == 4
        started = loop.time()
        second = await asyncio.gather(*(pool.take("a") for _ in range(4)))
        assert loop.time() == started, "a warm start waits for nothing"
        assert len({*first, *second}) == 8, "nothing is given twice"
        assert (pool.cold_starts, pool.warm_starts) == (4, 4)
        await pool.aclose()

    run(main())


def test_what_is_not_asked_for_any_longer_is_ended() -> None:
    async def main() -> None:
        factory = Factory()
        pool = factory.pool()
        given_out = await pool.take("a")
        await asyncio.sleep(10)
        assert pool.waiting == 1
        await asyncio.sleep(WINDOW_S)
        pool.adjust()
        await asyncio.sleep(1)
        assert pool.waiting == 0 and len(factory.discarded) == 1 and given_out not in factory.discarded

    run(main())


def test_one_that_broke_while_it_waited_is_not_given() -> None:
    async def main() -> None:
        factory = Factory()
        pool = factory.pool()
        await pool.take("a")
        await asyncio.sleep(10)
        factory.broken = set(factory.made)
        assert await pool.take("a") not in factory.broken
        await pool.aclose()
        assert factory.broken - {0} <= set(factory.discarded)

    run(main())


def test_kinds_are_apart_and_closing_leaves_nothing() -> None:
    async def main() -> None:
        factory = Factory()
        pool = factory.pool()
        given_out = [await pool.take("a"), await pool.take("b")]
        await asyncio.sleep(MAKE_S / 2)  # while others are being made
        await pool.aclose()
        assert set(factory.made) - set(factory.discarded) == set(given_out)
        with pytest.raises(SandboxError, match="closed"):
            await pool.take("a")

    run(main())


def test_a_failure_is_told_to_who_asks_and_the_pool_goes_on() -> None:
    async def main() -> None:
        factory = Factory(fail=True)
        pool = factory.pool()
        with pytest.raises(SandboxError, match="no engine"):
            await pool.take("a")
        await asyncio.sleep(10)
        factory.fail = False
        assert await pool.take("a") == 0
        await pool.aclose()

    run(main())
