"""Spans and counters, with the standard library only. Any room may use it; it knows none.

    with recording() as recorder:
        with span("env.step", env="games/frozen-lake"):
            ...
        count("episodes")
        finished = recorder.drain()

Without a recorder, `span` and `count` do nothing, in a quarter of a microsecond at most.
"""

from tunix_core.profiling.recorder import Recorder, SpanRecord, count, recording, span
from tunix_core.profiling.shares import busy_share

__all__ = ["Recorder", "SpanRecord", "busy_share", "count", "recording", "span"]
