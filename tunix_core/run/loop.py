"""The event loop a run goes on, set up for ten thousand episodes that wait."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
# Thresholds of the garbage collector's generations; a look at so many young objects takes some 50 ms.
YOUNG, MIDDLE, OLD = 200_000, 20, 20


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run(main)`, on uvloop where it is installed: its timers and callbacks cost a third."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


@contextmanager
def calm_collector() -> Iterator[None]:
    """Lets the garbage collector look less often, and not at what is there already.

    Thousands of live episodes are looked through again and again otherwise, for the few cycles that
    failures leave; that took a quarter of the loop's time.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # it is not built for every system
        return None
    return uvloop.new_event_loop
