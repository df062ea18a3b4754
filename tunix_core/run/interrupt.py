"""Ctrl-C: once asks the run to stop cleanly, twice stops it at once, and a third time ends the process as it is."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Self


class Stopped(Exception):
    """The user asked the run to stop."""


class Interrupt:
    """While entered, the first SIGINT sets it; the second raises KeyboardInterrupt wherever the main thread is; and the
    third ends the process there, for code that a KeyboardInterrupt does not end.

    Signals reach the main thread alone: a run in another thread is not stopped this way.
    """

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            # Not the loop's handler, which comes when the loop is free: the second is to reach what holds it up.
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._listens:
            signal.signal(signal.SIGINT, self._before or signal.SIG_DFL)  # None: it was none of Python's

    @property
    def asked(self) -> bool:
        """Whether the user has asked."""
        return self._asked.is_set()

    async def wait(self) -> None:
        """Returns once the user has asked."""
        await self._asked.wait()

    def _ask(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._stop)
        self._loop.call_soon_threadsafe(self._asked.set)

    def _stop(self, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt
