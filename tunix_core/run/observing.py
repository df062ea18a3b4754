"""What watches a run while it goes on: its spans, what they say of the wall clock, and the loop's watchdog."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter_ns

from tunix_core.profiling import Recorder, SpanLog, Watchdog, recording
from tunix_core.profiling.holding import cutting
from tunix_core.run.barriers import KINDS, Barriers


class Observation:
    """A run that is being watched; see `observing`.

    Attributes:
        recorder: of all spans of the process.
    """

    def __init__(self, recorder: Recorder, barriers: Barriers, spans: SpanLog, watchdog: Watchdog) -> None:
        self.recorder, self._barriers, self._spans, self._watchdog = recorder, barriers, spans, watchdog

    @property
    def episodes(self) -> int:
        """How many have ended, of training and of evaluation."""
        return self._barriers.episodes

    def row(self) -> dict[str, float]:
        """The shares since the last row, the loop's lag, and when the row ends.

        "until_s" is of `time.time`, as `read_spans` has it: the row's window is the "window_s" before it.
        """
        until_ns = perf_counter_ns()
        unix_s = (until_ns + time.time_ns() - perf_counter_ns()) / 1e9
        going = self.recorder.open(KINDS)
        self._spans.flush()
        window_s, shares = self._barriers.row(until_ns, going)
        lag = {f"loop/{name}": value for name, value in self._watchdog.statistics().items()}
        spans = {"spans/dropped": float(self.recorder.dropped)}
        return {"until_s": unix_s, "window_s": window_s, **shares, **lag, **spans}

    def restart(self) -> None:
        """The next row begins now."""
        self._barriers.restart()


@contextmanager
def observing(folder: Path | None) -> Iterator[Observation]:
    """Records the spans of what happens inside, to `folder` if one is given. Enter it on the loop to be watched."""
    with recording() as recorder, cutting() as cut_off:
        barriers = Barriers()
        spans = SpanLog(recorder, folder, barriers.watch)
        watchdog = Watchdog(waited_for=lambda: bool(recorder.open(("episode",))), held=cut_off)
        watchdog.start()
        try:
            yield Observation(recorder, barriers, spans, watchdog)
        finally:
            watchdog.stop()
            spans.close()


@asynccontextmanager
async def profiled(folder: Path, wanted: bool) -> AsyncIterator[None]:
    """Runs JAX's profiler too during what happens inside, if it is wanted."""
    if not wanted:
        yield
        return
    from tunix_core.profiling.jax import jax_window

    window = jax_window(folder)
    await asyncio.to_thread(window.__enter__)  # writing it down takes a second or more
    try:
        yield
    finally:
        await asyncio.to_thread(window.__exit__, None, None, None)
