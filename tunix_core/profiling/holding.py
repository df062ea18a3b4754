"""Cuts off calls that hold the event loop up: what blocks there can't be cancelled in another way.

A coroutine that blocks, where it should await, stops every episode, and the timers that bound it as well. A signal
reaches it: Python runs its handler in the loop's thread, in the midst of whatever runs there.
"""

from __future__ import annotations

import asyncio
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
_bounded: set[CodeType] = set()


class Bound:
    """The time of one call on the event loop.

    Attributes:
        cut: whether the call was cut off, since it held the loop up when its time was over.
    """

    __slots__ = ("_due", "cut")

    def __init__(self, seconds: float) -> None:
        self._due, self.cut = monotonic() + seconds, False

    def is_over(self) -> bool:
        return monotonic() >= self._due


def bounded(function: F) -> F:
    """Marks a coroutine function that makes calls: its argument `bound`, a Bound, says how long they may take."""
    _bounded.add(function.__code__)
    return function


@contextmanager
def cutting() -> Iterator[Callable[[], None]]:
    """Inside, what is given cuts off the call that the loop is in, if its time is over: asyncio.CancelledError is
    raised in it. From any thread; enter this in the loop's, which must be the main one: elsewhere nothing is cut."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    own, before = threading.get_ident(), signal.signal(SIGNAL, _cut_off)
    try:
        yield lambda: signal.pthread_kill(own, SIGNAL)
    finally:
        signal.signal(SIGNAL, before)


def _cut_off(_: int, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code not in _bounded:
        frame = frame.f_back
    bound = frame and frame.f_locals.get("bound")
    if bound and bound.is_over():
        bound.cut = True
        raise asyncio.CancelledError
