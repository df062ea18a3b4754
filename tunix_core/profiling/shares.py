"""How much of a time was spent under a name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tunix_core.profiling.recorder import SpanRecord

Interval = tuple[int, int]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as disjoint intervals, in order; what touches is joined."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def covered_ns(intervals: Iterable[Interval], since_ns: int, until_ns: int) -> int:
    """How much of [since_ns, until_ns] lies in at least one of the intervals."""
    clipped = ((max(start, since_ns), min(end, until_ns)) for start, end in intervals)
    return sum(end - start for start, end in merged(pair for pair in clipped if pair[0] < pair[1]))


def busy_share(spans: Iterable[SpanRecord], names: str | Collection[str], *, since_ns: int, until_ns: int) -> float:
    """The share of [since_ns, until_ns] during which at least one span with one of the names was open.

    Spans that overlap count once, so the share is at most 1.

    Args:
        spans: in any order.
        names: one, or several.
        since_ns, until_ns: of the clock that the spans were measured with.

    Raises:
        ValueError: when the interval is empty.
    """
    if until_ns <= since_ns:
        raise ValueError(f"until_ns must be after since_ns; got {since_ns} to {until_ns}")
    wanted = {names} if isinstance(names, str) else set(names)
    intervals = [(s.start_ns, s.end_ns) for s in spans if s.name in wanted]
    return covered_ns(intervals, since_ns, until_ns) / (until_ns - since_ns)
