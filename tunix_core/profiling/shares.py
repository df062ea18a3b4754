"""How much of a time was spent under a name."""

from __future__ import annotations

from collections.abc import Iterable

from tunix_core.profiling.recorder import SpanRecord


def busy_share(spans: Iterable[SpanRecord], name: str, *, since_ns: int, until_ns: int) -> float:
    """The share of [since_ns, until_ns] during which at least one span called `name` was open.

    Spans that overlap count once, so the share is at most 1.

    Args:
        spans: finished spans, in any order.
        since_ns, until_ns: of `time.perf_counter_ns`.

    Raises:
        ValueError: when the interval is empty.
    """
    if until_ns <= since_ns:
        raise ValueError(f"until_ns must be after since_ns; got {since_ns} to {until_ns}")
    clipped = sorted((max(s.start_ns, since_ns), min(s.end_ns, until_ns)) for s in spans if s.name == name)
    busy_ns, covered_ns = 0, since_ns
    for start_ns, end_ns in clipped:
        busy_ns += max(0, end_ns - max(start_ns, covered_ns))
        covered_ns = max(covered_ns, end_ns)
    return busy_ns / (until_ns - since_ns)
