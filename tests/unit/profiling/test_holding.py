"""A coroutine that blocks is cut off when its time is over, and the loop goes on."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tunix_core.envs.caller import Caller
from tunix_core.envs.waiting import Limit, Tally
from tunix_core.errors import EnvError
from tunix_core.profiling import Watchdog
from tunix_core.profiling.holding import SIGNAL, Bound, cutting
from tunix_core.rewards.threads import call_on_loop

left: list[str] = []


async def blocks() -> str:
    """Is told to end in the midst of its work, as one that sleeps is."""
    try:
        signal.raise_signal(SIGNAL)
        return "its time is not over"
    finally:
        left.append("left")


async def swallows() -> str:
    try:
        return await blocks()
    except asyncio.CancelledError:
        signal.raise_signal(SIGNAL)  # it has a moment to leave
        return "what nobody waits for"


async def waits_for_ever() -> None:
    threading.Event().wait()


def called(work: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    async def main() -> Any:
        caller, limit = Caller(Tally()), Limit(seconds, "timeouts.step_s")
        try:
            return await caller.call(work, limit, "env.step")
        finally:
            assert await caller.call(lambda: 1, Limit(10, "timeouts.close_s"), "env.close") == 1
            caller.end()
            limit.close()

    left.clear()
    with cutting():
        return asyncio.run(main())


@pytest.mark.parametrize("work", [blocks, swallows])
def test_an_environments_call_whose_time_is_over_is_cut_off(work: Callable[[], Awaitable[Any]]) -> None:
    with pytest.raises(EnvError, match=r"env\.step \(timeouts\.step_s\) took longer .*held the event loop") as caught:
        called(work, 0.0)
    assert caught.value.kind == "env_timeout" and left == ["left"]


def test_one_that_still_has_time_goes_on() -> None:
    assert called(blocks, 60.0) == "its time is not over"


def test_a_reward_is_cut_off_as_well() -> None:
    with cutting():
        assert asyncio.run(call_on_loop(blocks(), 60.0)) == "its time is not over"
        with pytest.raises(TimeoutError, match=r"longer than 0 s; it held the event loop"):
            asyncio.run(call_on_loop(blocks(), 0.0))


def test_what_is_no_bounded_call_is_left_alone() -> None:
    with cutting() as cut:
        cut()
        assert asyncio.run(blocks()) == "its time is not over"


def test_afterwards_nobody_listens() -> None:
    before = signal.getsignal(SIGNAL)
    with cutting():
        assert signal.getsignal(SIGNAL) is not before
    assert signal.getsignal(SIGNAL) is before


def test_in_another_thread_nothing_is_cut() -> None:
    before, found = signal.getsignal(SIGNAL), []

    def run() -> None:
        with cutting() as cut:
            cut()
            found.append(signal.getsignal(SIGNAL))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_watchdog_ends_one_that_blocks_for_ever(loop: str) -> None:
    uvloop = pytest.importorskip("uvloop") if loop == "uvloop" else None

    async def main() -> None:
        caller, limit = Caller(Tally()), Limit(0.05, "timeouts.step_s")
        dog = Watchdog(limit_s=0.02, held=cut)
        dog.start()
        with pytest.raises(EnvError, match="held the event loop"):
            await caller.call(waits_for_ever, limit, "env.step")
        dog.stop()
        caller.end()
        limit.close()

    with cutting() as cut, asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run(main())


def test_who_is_found_in_anothers_hold_is_left_alone_until_it_holds_as_long_itself() -> None:
    one, other = Bound(1.0), Bound(1.0)
    assert not one.is_over(7, 100.0) and not one.is_over(7, 100.9)
    assert one.is_over(7, 101.0)
    assert not other.is_over(7, 101.1) and not other.is_over(7, 102.0), "it was first found at 101.1"
    assert not one.is_over(8, 103.0), "another hold: it had let go between the two"


def test_what_was_cut_off_has_a_moment_to_leave() -> None:
    bound = Bound(0.0)
    assert bound.is_over(0, 5.0)
    bound.cut_off(5.0)
    assert bound.cut and not bound.is_over(0, 5.9) and bound.is_over(0, 6.0)


def test_nothing_is_cut_off_where_it_holds_a_lock_of_the_logging_module() -> None:
    class Pressed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            signal.raise_signal(SIGNAL)

    async def logs() -> str:
        log.info("hello")
        return "logged"

    log, handler = logging.Logger("own", logging.INFO), Pressed()
    log.addHandler(handler)
    assert called(logs, 0.0) == "logged"
