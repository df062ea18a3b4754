"""Cuts off calls that hold the event loop up: what blocks there can't be cancelled in another way.

A coroutine that blocks, where it should await, stops every episode, and the timers that bound it as well. A signal
reaches it: Python runs its handler in the loop's thread, in the midst of whatever runs there.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import CodeType, FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
SIGNAL = signal.SIGURG  # nobody else's, and ignored where nobody listens
ADVICE = "it held the event loop up: what blocks belongs in a `def`, which runs in a thread, or in a process"
GRACE_S = 1.0  # for what was cut off to leave
# Where they are cut off, their locks may be left held: later, then.
FRAGILE = frozenset({logging.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"})
_bounded: set[CodeType] = set()


class Bound:
    """The time of one call on the event loop: it may hold the loop up for as long, and no longer.

    Attributes:
        cut: whether the call was cut off.
    """

    __slots__ = ("_hold", "_seconds", "_since", "cut")

    def __init__(self, seconds: float) -> None:
        self._seconds, self.cut = seconds, False
        self._hold, self._since = -1, 0.0

    def is_over(self, hold: int, now: float) -> bool:
        """Whether it has held the loop up for its time, from when it was first found to do so in this hold."""
        if hold != self._hold:
            self._hold, self._since = hold, now
        return now - self._since >= self._seconds

    def cut_off(self, now: float) -> None:
        """It is told to end now, and has a moment for that."""
        self.cut, self._since, self._seconds = True, now, GRACE_S


class _Holds:
    """The holds of the loop so far."""

    number = 0
    seconds = 0.0


def held_s() -> float:
    """How long the loop has been held up, in all: to whoever waits meanwhile that is no time."""
    return _Holds.seconds


def add_hold(seconds: float) -> None:
    """A hold has ended."""
    _Holds.number += 1
    _Holds.seconds += seconds


def bounded(function: F) -> F:
    """Marks a coroutine function that makes calls: its argument `bound`, a Bound, says how long they may take."""
    _bounded.add(function.__code__)
    return function


@contextmanager
def cutting() -> Iterator[Callable[[], None]]:
    """Inside, what is given cuts off the call that the loop is in, if it has held the loop up for its time:
    asyncio.CancelledError is raised in it. To be called again and again during a hold, from any thread. Enter this in
    the loop's, which must be the main one: elsewhere nothing is cut."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    own, before = threading.get_ident(), signal.signal(SIGNAL, _cut_off)
    try:
        yield lambda: signal.pthread_kill(own, SIGNAL)
    finally:
        signal.signal(SIGNAL, before or signal.SIG_DFL)  # None: it was none of Python's


def _cut_off(_: int, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code not in _bounded:
        if frame.f_code.co_filename in FRAGILE:
            return
        frame = frame.f_back
    bound, now = frame and frame.f_locals.get("bound"), monotonic()
    if bound and bound.is_over(_Holds.number, now):
        bound.cut_off(now)
        raise asyncio.CancelledError
