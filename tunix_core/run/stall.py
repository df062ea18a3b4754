"""Ends a run in which nothing moves any more, and says what every room was doing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from tunix_core.errors import Stalled
from tunix_core.profiling import Recorder
from tunix_core.run.in_flight import state_of_rooms

T = TypeVar("T")
log = logging.getLogger(__name__)
LOOK_S = 5.0  # at most, between two looks
OBEY_S = 5.0  # for cancelled work to end


class Observed(Protocol):
    """What is known of a run; see `observing.Observation`."""

    recorder: Recorder

    @property
    def episodes(self) -> int: ...


class StallWatch:
    """Bounds every wait of the work it watches.

    Args:
        timeout_s: without any progress, after which the work is ended.
        observed: whose open spans tell the episodes in flight; one that ends is progress.
        rooms: what each room says of itself, by name.
        clock: seconds.
    """

    def __init__(
        self,
        timeout_s: float,
        observed: Observed,
        rooms: Callable[[], Mapping[str, Any]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s, self._observed, self._rooms, self._clock = timeout_s, observed, rooms, clock
        self._moved, self._ended = clock(), 0

    def progress(self) -> None:
        """Something moved besides episodes: a group was taken, a step was made."""
        self._moved = self._clock()

    async def over(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives.

        Raises:
            Stalled: nothing moved for `timeout_s`; `work` is cancelled, and left behind if it does not obey.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=min(LOOK_S, self._timeout_s / 4))
                if self._observed.episodes != self._ended:
                    self._ended = self._observed.episodes
                    self.progress()
                if not task.done() and self._clock() - self._moved > self._timeout_s:
                    raise Stalled(self._report())
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=OBEY_S)

    def _report(self) -> str:
        idle_s = self._clock() - self._moved
        state = state_of_rooms(self._rooms(), self._observed.recorder.open())
        report = f"nothing has moved for {idle_s:.0f} s (scheduler.stall_timeout_s).\n{state}"
        log.error("the run has stalled: %s", report)  # at once: closing the rooms may take long as well
        return report
