"""Waiting for an environment with a bound, and counting what went wrong on the way."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tunix_core.errors import EnvError
from tunix_core.profiling.holding import ADVICE, held_s
from tunix_core.specs import Timeouts

GRACE_S = 1.0  # for cancelled work to end
CLOCK_S = 0.001  # no timer is finer: less than that is no time left, or a rounding error would be waited for, for ever
START_S = 300.0  # for a process to be there, with what the environment imports: many may start at once
OVERDUE: Any = object()  # what a waiter is given when its time is over


@dataclass(slots=True)
class Tally:
    """One suite's counts. `abandoned` holds the closings still to come of calls that never returned."""

    opened: int = 0
    closed: int = 0
    close_failures: int = 0
    close_timeouts: int = 0
    abandoned_total: int = 0
    abandoned: set[Any] = field(default_factory=set)
    uncancelled: set[asyncio.Future[Any]] = field(default_factory=set)


class Limit:
    """One bound on the time of calls: any number of them wait at once, on one timer.

    All have the same time, so the first that came is the first that is due. A timer for each would cost more
    than most calls take.

    Args:
        seconds: how long a call may take.
        option: which option says so, "timeouts.step_s".
    """

    def __init__(self, seconds: float, option: str) -> None:
        self.seconds, self.option = seconds, option
        self._due: OrderedDict[asyncio.Future[Any], float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    async def settled(self, work: asyncio.Future[Any]) -> None:
        """Returns when `work` is done, or when its time is over."""
        if work.done():
            return
        waiter = work.get_loop().create_future()

        def wake(_: object) -> None:
            if not waiter.done():
                waiter.set_result(None)

        work.add_done_callback(wake)
        self.watch(waiter)
        try:
            await waiter
        finally:
            self.forget(waiter)
            if not work.done():
                work.remove_done_callback(wake)

    def watch(self, waiter: asyncio.Future[Any]) -> None:
        """Gives it OVERDUE when its time is over; until `forget`."""
        loop = waiter.get_loop()
        self._due[waiter] = _time(loop) + self.seconds
        if self._timer is None:
            self._timer = loop.call_later(self.seconds, self._look, loop)

    def forget(self, waiter: asyncio.Future[Any]) -> None:
        self._due.pop(waiter, None)

    def overdue(self, what: str, held: bool = False) -> EnvError:
        """The error of a call that its time was not enough for; `held`: it held the event loop up."""
        why = f"; {ADVICE}" if held else ""
        return EnvError(f"{what} ({self.option}) took longer than {self.seconds:g} s{why}", kind="env_timeout")

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wakes those whose time is over, and comes again for the next."""
        self._timer = None
        while self._due:
            waiter, due = next(iter(self._due.items()))
            left_s = due - _time(loop)
            if left_s > CLOCK_S:
                self._timer = loop.call_later(left_s, self._look, loop)
                return
            del self._due[waiter]
            if not waiter.done():
                waiter.set_result(OVERDUE)


def _time(loop: asyncio.AbstractEventLoop) -> float:
    """Seconds, without those in which somebody held the loop up: nobody else pays for that."""
    return loop.time() - held_s()


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one suite's environments."""

    start: Limit
    reset: Limit
    step: Limit
    close: Limit

    @classmethod
    def of(cls, timeouts: Timeouts) -> Limits:
        names = ("reset", "step", "close")
        own = (Limit(getattr(timeouts, f"{name}_s"), f"timeouts.{name}_s") for name in names)
        return cls(Limit(START_S, "the start of its process"), *own)

    def end(self) -> None:
        """Nobody waits any more."""
        for limit in (self.start, self.reset, self.step, self.close):
            limit.close()


async def bounded(work: asyncio.Future[Any], limit: Limit, what: str, tally: Tally) -> Any:
    """The result of `work`, within the limit; past it, or when the caller is cancelled, `work` is cancelled.

    Work that does not obey within a second is left behind and counted in `tally.uncancelled`.

    Args:
        what: what is being done: "env.step".

    Raises:
        EnvError: kind "env_timeout"; or the work cancelled itself. Else whatever `work` raises.
    """
    try:
        await limit.settled(work)
    except asyncio.CancelledError:
        await ended_by_cancelling(work, tally)
        raise
    if not work.done():
        await ended_by_cancelling(work, tally)
        raise limit.overdue(what)
    if work.cancelled():
        raise EnvError(f"{what} ({limit.option}) cancelled itself")
    try:
        return work.result()
    finally:
        del work  # what it raised holds this frame


async def ended_by_cancelling(work: asyncio.Future[Any], tally: Tally) -> None:
    """Cancels `work`, and waits a second for it to end; it is counted in `tally.uncancelled` until it does."""
    work.cancel()
    work.add_done_callback(_retrieve)
    tally.uncancelled.add(work)
    work.add_done_callback(tally.uncancelled.discard)
    await asyncio.wait({work}, timeout=GRACE_S)


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Takes what cancelled work raised, so that asyncio does not log it as never retrieved."""
    if not work.cancelled():
        work.exception()


async def wait_for_thread(call: Future[Any], limit_s: float) -> bool:
    """Whether a thread's call is done within `limit_s`. Does not cancel it, unlike `asyncio.wrap_future`."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    call.add_done_callback(tell)
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await done.wait()
    return call.done()
