"""An episode's limits: `asyncio.timeout`, on one timer."""

from __future__ import annotations

import asyncio

import pytest

from tunix_core.rollout.limits import Timer
from tunix_core.testing.clock import run


def test_a_limit_bounds_each_entry_anew() -> None:
    async def main() -> None:
        timer, now = Timer(), asyncio.get_running_loop().time
        limit = timer.limit(5.0)
        for _ in range(4):
            with limit:
                await asyncio.sleep(4.0)
        with pytest.raises(TimeoutError), limit:
            await asyncio.sleep(6.0)
        assert now() == 21.0
        with limit:
            await asyncio.sleep(4.0)
        timer.close()
        assert now() == 25.0

    run(main())


def test_the_outer_limit_ends_what_the_inner_one_would_still_allow() -> None:
    async def main() -> None:
        timer = Timer()
        outer, inner = timer.limit(7.0), timer.limit(5.0)
        with pytest.raises(TimeoutError), outer:
            with inner:
                await asyncio.sleep(4.0)
            try:
                with inner:
                    await asyncio.sleep(4.0)
            except TimeoutError:
                pytest.fail("the inner limit had two seconds left")
        assert asyncio.get_running_loop().time() == 7.0

    run(main())


def test_the_inner_limit_leaves_the_outer_one_as_it_was() -> None:
    async def main() -> None:
        timer = Timer()
        outer, inner = timer.limit(60.0), timer.limit(1.0)
        with outer:
            with pytest.raises(TimeoutError), inner:
                await asyncio.sleep(2.0)
            await asyncio.sleep(50.0)
        timer.close()

    run(main())


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def bounded() -> None:
        with Timer().limit(5.0):
            await asyncio.sleep(9.0)

    async def main() -> None:
        task = asyncio.ensure_future(bounded())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_closed_timer_leaves_nothing_behind() -> None:
    async def main() -> float:
        timer = Timer()
        with timer.limit(50.0):
            await asyncio.sleep(1.0)
        timer.close()
        return asyncio.get_running_loop().time()

    assert run(main(), timeout_s=2.0) == 1.0
