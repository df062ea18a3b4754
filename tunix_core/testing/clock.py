"""An event loop whose time is virtual: it jumps to the next scheduled callback when nothing is ready.

`run(main())` is `asyncio.run` with that loop: an hour of `asyncio.sleep` costs nothing, and every
run sees the same times. Does not know what is tested. What happens in real time (threads, processes)
is waited for only while it is known: work given to executors is, other work says so with `hold()`.
"""

from __future__ import annotations

import asyncio
import inspect
import selectors
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from tunix_core.errors import TunixError

T = TypeVar("T")


class Deadlock(TunixError):
    """Nothing is ready, nothing is scheduled, and the main coroutine isn't done; lists who waits where."""


class OutOfTime(TunixError, TimeoutError):
    """The main coroutine wasn't done after `timeout_s` virtual seconds; lists who waits where."""


def run(main: Coroutine[Any, Any, T], timeout_s: float = 3600.0, *, patience_s: float = 5.0) -> T:
    """Runs a coroutine to its end in virtual time and gives its result.

    Args:
        main: what to run; other tasks still running when it ends are cancelled.
        timeout_s: virtual seconds after which the run is given up.
        patience_s: real seconds a held loop waits for threads and sockets before it takes them to
            be hung and jumps all the same. A test of a hung thread makes it small.

    Raises:
        Deadlock: at once, when no one can ever wake `main`.
        OutOfTime: after `timeout_s`.
    """
    with asyncio.Runner(loop_factory=lambda: JumpingLoop(timeout_s, patience_s)) as runner:
        return runner.run(main)


@contextmanager
def hold() -> Iterator[None]:
    """Keeps time from jumping while real work goes on that the loop can't see (a thread of one's own).

    Enter and leave it on the loop. On a loop with real time it does nothing.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, JumpingLoop):
        yield
        return
    loop.holds += 1
    try:
        yield
    finally:
        loop.holds -= 1


class JumpingLoop(asyncio.SelectorEventLoop):
    """The loop behind `run`. Its `time()` starts at 0.0 and moves only by jumps.

    Attributes:
        holds: how many pieces of real work are going on; see `hold`.
    """

    def __init__(self, timeout_s: float, patience_s: float) -> None:
        self.holds = 0
        self._now_s = 0.0
        self._timeout_s, self._patience_s = timeout_s, patience_s
        super().__init__(_JumpingSelector(self.wait_for_real_work, self.jump))

    def time(self) -> float:
        return self._now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self.holds += 1
        future.add_done_callback(self._release)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Waits for no thread: a hung one must not hang the test. `close` shuts the executor down."""

    def wait_for_real_work(self, registered: int, scheduled: bool) -> float:
        """Real seconds to wait for events before a jump.

        One registered file is the loop's own wake-up pipe. With nothing scheduled, any other may
        still bring news; with something scheduled, an idle socket must not slow every jump.
        """
        return self._patience_s if self.holds or (registered > 1 and not scheduled) else 0.0

    def jump(self, seconds: float | None) -> None:
        """Moves the time forward. `None`: nothing is scheduled."""
        if seconds is None:
            raise Deadlock(f"nothing can go on at {self._now_s:g} s of virtual time; waiting:\n{_waiting(self)}")
        if self._now_s + seconds > self._timeout_s:
            raise OutOfTime(f"not done after timeout_s={self._timeout_s:g} virtual seconds; waiting:\n{_waiting(self)}")
        self._now_s += seconds

    def _release(self, _: asyncio.Future[Any]) -> None:
        self.holds -= 1


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, real_wait_s: Callable[[int, bool], float], jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._real_wait_s, self._jump = real_wait_s, jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The loop asks with 0 when callbacks are ready, with None when nothing is scheduled."""
        if timeout == 0:
            return super().select(0)
        wait_s = self._real_wait_s(len(self.get_map()), timeout is not None)
        events = super().select(wait_s)
        if not events:
            self._jump(timeout)
        return events


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    return "\n".join(f"{task.get_name()}:\n{_stack(task)}" for task in asyncio.all_tasks(loop))


def _stack(task: asyncio.Task[Any]) -> str:
    """Where a suspended task stands, innermost last; `Task.get_stack` gives the outermost frame only."""
    frames: list[tuple[FrameType, int]] = []
    awaited: Any = task.get_coro()
    while inspect.iscoroutine(awaited) and awaited.cr_frame:
        frames.append((awaited.cr_frame, awaited.cr_frame.f_lineno))
        awaited = awaited.cr_await
    return "".join(traceback.StackSummary.extract(frames).format())
