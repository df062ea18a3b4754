"""Waiting for an environment with a bound, and counting what went wrong on the way."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tunix_core.errors import EnvError

GRACE_S = 1.0  # for cancelled work to end


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


async def bounded(work: asyncio.Future[Any], limit_s: float, what: str, tally: Tally) -> Any:
    """The result of `work`, within `limit_s`; past it, or when the caller is cancelled, `work` is cancelled.

    Work that does not obey within a second is left behind and counted in `tally.uncancelled`.

    Args:
        what: what is being done, and which option bounds it: "env.step (timeouts.step_s)".

    Raises:
        EnvError: kind "env_timeout"; or the work cancelled itself. Else whatever `work` raises.
    """
    try:
        await _settled(work, limit_s)
    except asyncio.CancelledError:
        await _cancel(work, tally)
        raise
    if not work.done():
        await _cancel(work, tally)
        raise EnvError(f"{what} took longer than {limit_s:g} s", kind="env_timeout")
    if work.cancelled():
        raise EnvError(f"{what} cancelled itself")
    return work.result()


async def _settled(work: asyncio.Future[Any], limit_s: float) -> None:
    """Returns when `work` is done, or after `limit_s`: `asyncio.wait` of one, for a third of its price."""
    if work.done():
        return
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(limit_s, wake)
    work.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        work.remove_done_callback(wake)


async def _cancel(work: asyncio.Future[Any], tally: Tally) -> None:
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
