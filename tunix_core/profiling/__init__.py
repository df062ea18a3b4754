"""Spans and counters, with the standard library only. Any room may use it; it knows none.

    with recording() as recorder:
        with span("env.step", env="games/frozen-lake"):
            ...
        count("episodes")
        finished = recorder.drain()

Without a recorder, `span` and `count` do nothing, in a quarter of a microsecond at most.
"""

from tunix_core.profiling.recorder import (
    Recorder,
    SpanRecord,
    continue_span,
    count,
    current_span,
    note,
    recording,
    span,
)
from tunix_core.profiling.shares import Interval, busy_share, covered_ns, merged
from tunix_core.profiling.span_log import SpanLog, read_spans
from tunix_core.profiling.watchdog import Watchdog

__all__ = [
    "Interval",
    "Recorder",
    "SpanLog",
    "SpanRecord",
    "Watchdog",
    "busy_share",
    "continue_span",
    "count",
    "covered_ns",
    "current_span",
    "merged",
    "note",
    "read_spans",
    "recording",
    "span",
]
