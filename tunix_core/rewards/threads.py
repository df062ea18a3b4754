"""Calls that must end in time: blocking ones in daemon threads, coroutines on the event loop.

A limit measures the call, not the event loop: when the loop itself was late, a call that had
ended meanwhile counts as in time, and one that still waits gets back what the loop took.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from tunix_core.errors import RewardError
from tunix_core.profiling.holding import ADVICE, Bound, bounded

CANCEL_GRACE_S = 1.0
MOST_ABANDONED = 32  # threads that may hang at a time
_abandoned: set[threading.Thread] = set()


def abandoned_threads() -> int:
    """How many threads, given up at a timeout, still run."""
    _abandoned.intersection_update(threading.enumerate())
    return len(_abandoned)


async def call_in_thread(function: Callable[[], Any], timeout_s: float) -> Any:
    """The function's value, computed in a daemon thread of its own.

    Args:
        timeout_s: seconds it may take.

    Raises:
        TimeoutError: it took longer. A thread can't be killed: it is abandoned and counted.
        RewardError: it raised something that is not an Exception (SystemExit, ...); or MOST_ABANDONED threads hang.
        Exception: whatever the function raised.
    """
    if len(_abandoned) >= MOST_ABANDONED and abandoned_threads() >= MOST_ABANDONED:
        raise RewardError(
            f"{MOST_ABANDONED} calls of rewards hang in their threads, and no more are begun. Mark what hangs "
            "cpu_bound=True, and it runs in a process that can be killed; or make it async."
        )
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[bool, Any]] = loop.create_future()
    thread = threading.Thread(target=_run, args=(function, loop, outcome), name="tunix-reward", daemon=True)
    thread.start()
    try:
        await _finish(outcome, timeout_s)
    finally:
        if not outcome.done():
            outcome.cancel()
            _abandoned.add(thread)
    if outcome.cancelled():
        raise TimeoutError(f"still running after {timeout_s:g} s; its thread was abandoned")
    returned, value = outcome.result()
    if returned:
        return value
    raise value if isinstance(value, Exception) else RewardError(f"raised {type(value).__name__}: {value}")


async def call_on_loop(coroutine: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
    """The coroutine's value.

    Raises:
        TimeoutError: it took longer than `timeout_s` seconds; it was cancelled.
        RewardError: it was cancelled, but not by us.
        Exception: whatever the coroutine raised.
    """
    bound = Bound(timeout_s)
    task = asyncio.ensure_future(_contained(coroutine, bound))
    try:
        await _finish(task, timeout_s)
        if bound.cut:
            raise TimeoutError(f"took longer than {timeout_s:g} s; {ADVICE}")
        if not task.done():
            raise TimeoutError(f"still waiting after {timeout_s:g} s; it was cancelled")
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
    if task.cancelled():
        raise RewardError("cancelled itself")
    return task.result()


@bounded
async def _contained(coroutine: Coroutine[Any, Any, Any], bound: Bound) -> Any:
    """What is no Exception (SystemExit, a panic in Rust) would end the run, and every episode with it."""
    try:
        return await coroutine
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RewardError(f"raised {type(error).__name__}: {error}") from error


async def _finish(future: asyncio.Future[Any], timeout_s: float) -> None:
    """Waits until it is done, at most `timeout_s` and what the event loop itself was late."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    await asyncio.wait({future}, timeout=timeout_s)
    late = loop.time() - deadline
    if not future.done() and late > 0:
        await asyncio.wait({future}, timeout=min(late, timeout_s))


def _run(function: Callable[[], Any], loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[Any]) -> None:
    try:
        value = (True, function())
    except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
        value = (False, error)
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, outcome, value)


def _settle(outcome: asyncio.Future[Any], value: Any) -> None:
    if not outcome.done():
        outcome.set_result(value)
