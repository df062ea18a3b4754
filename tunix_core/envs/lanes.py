"""Threads for blocking calls of one suite's environments, and how many may be in such calls."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from tunix_core.envs.waiting import Tally
from tunix_core.errors import EnvError
from tunix_core.tools.threads import Lane


class Lanes:
    """Threads for blocking environments, reused from one episode to the next.

    Args:
        calls: made at a time, at most; those that never return included.
        tally: of the threads left behind.
    """

    def __init__(self, name: str, calls: int, tally: Tally) -> None:
        self._name, self._calls, self._tally = name, calls, tally
        self._places = asyncio.Semaphore(calls)
        self._all_hang = self._ended = False
        self._last = ""  # why the newest thread was left behind
        self._idle: list[Lane] = []
        self.made = 0

    async def enter(self) -> None:
        """Takes a place among the calls that are made.

        Raises:
            EnvError: every one of them hangs.
        """
        await self._places.acquire()
        if self._all_hang:
            self._places.release()  # so that the next who waits is told
            raise EnvError(
                f"{self._calls} calls of {self._name} hang in their threads, and max_abandoned allows no more; "
                f"the last: {self._last}. Its next episodes run in processes, unless it needs sandboxes.",
                kind="env_timeout",
            )

    def leave_after(self, call: Future[Any]) -> None:
        """Gives the place back when `call` returns, if ever."""
        loop = asyncio.get_running_loop()

        def returned(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._left)

        call.add_done_callback(returned)

    def abandoned(self, why: str) -> None:
        """One more thread is left behind."""
        self._last = why
        if len(self._tally.abandoned) >= self._calls and not self._all_hang:
            self._all_hang = True
            self._places.release()

    def _left(self) -> None:
        if self._all_hang:
            self._all_hang = False  # the place that told so is this one
        else:
            self._places.release()

    def lease(self) -> Lane:
        if self._idle:
            return self._idle.pop()
        self.made += 1
        return Lane(f"tunix-env-{self._name}-{self.made}")

    def give_back(self, lane: Lane) -> None:
        if self._ended:
            lane.end()
        else:
            self._idle.append(lane)

    def end(self) -> None:
        """Ends the idle threads, and those that become idle."""
        self._ended = True
        while self._idle:
            lane = self._idle.pop()
            lane.end()
            lane.join(1.0)
