"""How long an episode may take, and each of its calls of the engine: on one timer."""

from __future__ import annotations

import asyncio
from math import inf
from types import TracebackType


class Timer:
    """Wakes up for whichever of an episode's limits is due first.

    A timer for every call would cost more than most calls: this one is set once, and when it is due, it looks what
    is due by then. To be made in the episode's task, and closed there.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # episodes run in tasks
        self.task, self.loop = task, asyncio.get_running_loop()
        self._limits: list[Limit] = []
        self._handle: asyncio.TimerHandle | None = None
        self._at = inf

    def limit(self, seconds: float) -> Limit:
        """Entered, it bounds what happens inside; again and again, but not inside itself."""
        made = Limit(self, seconds)
        self._limits.append(made)
        return made

    def set(self, due: float) -> None:
        """Will look then, at the latest."""
        if due < self._at:
            self._unset()
            self._at, self._handle = due, self.loop.call_at(due, self._look)

    def close(self) -> None:
        """Nothing is bounded any more, and nothing of the episode is held: its limits hold this timer."""
        self._unset()
        self._limits.clear()

    def _unset(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._at = None, inf

    def _look(self) -> None:
        self._unset()
        now = self.loop.time()
        for limit in self._limits:
            limit.look(now)
        self.set(min(limit.due for limit in self._limits))


class Limit:
    """`asyncio.timeout(seconds)` on an episode's timer; see `Timer.limit`.

    Raises:
        TimeoutError: at its end, when the time was over before.
    """

    __slots__ = ("_before", "_passed", "_seconds", "_timer", "due")

    def __init__(self, timer: Timer, seconds: float) -> None:
        self._timer, self._seconds, self.due = timer, seconds, inf
        self._before, self._passed = 0, False

    def __enter__(self) -> None:
        self._before, self._passed = self._timer.task.cancelling(), False
        self.due = self._timer.loop.time() + self._seconds
        self._timer.set(self.due)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.due = inf
        if self._passed and self._timer.task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def look(self, now: float) -> None:
        """Cancels the task when the time is over."""
        if now >= self.due:
            self.due, self._passed = inf, True
            self._timer.task.cancel()
