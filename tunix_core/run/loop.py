"""The event loop a run goes on, set up for ten thousand episodes that wait."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")
YOUNG = 5_000  # objects more than there were, after which the collector looks at the new ones: milliseconds
NEVER = 2**31 - 1
RARITY = 1_000  # a look at everything comes only after so many times as long as it takes


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run(main)`, on uvloop where it is installed: its timers and callbacks cost a third."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


class CalmCollector:
    """Has the garbage collector look at each object once, while it is new; at all of them seldom.

    Thousands of live episodes are looked through again and again otherwise, for the few cycles that failures leave:
    a quarter of the loop's time, a second in one piece. Those cycles are of new objects, a traceback and its frames.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked_s, self._takes_s = clock, 0.0, 0.0

    def __enter__(self) -> Self:
        self._before = gc.get_threshold()
        self._collect()
        gc.set_threshold(YOUNG, NEVER, NEVER)
        return self

    def __exit__(self, *_: object) -> None:
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def look(self) -> bool:
        """Looks at everything, unless the last look was not long ago for what it took; says whether it did."""
        due = self._clock() - self._looked_s >= RARITY * self._takes_s
        if due:
            gc.unfreeze()
            self._collect()
        return due

    def _collect(self) -> None:
        started = self._clock()
        gc.collect()
        gc.freeze()
        self._looked_s = self._clock()
        self._takes_s = self._looked_s - started


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # it is not built for every system
        return None
    return uvloop.new_event_loop
