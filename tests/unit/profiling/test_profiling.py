"""Spans pair up in interleaved coroutines, memory is bounded, and the cost is small."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.profiling import SpanRecord, busy_share, count, recording, span


def test_interleaved_coroutines_nest_each_in_itself() -> None:
    async def worker(name: str, begin: asyncio.Event, opened: asyncio.Event, end: asyncio.Event) -> None:
        await begin.wait()
        with span("outer", who=name), span("inner", who=name):
            opened.set()
            await end.wait()

    async def main() -> None:
        start, a_open, b_open, a_closed = (asyncio.Event() for _ in range(4))
        a = asyncio.create_task(worker("a", start, a_open, b_open))
        b = asyncio.create_task(worker("b", a_open, b_open, a_closed))
        start.set()
        await a
        a_closed.set()
        await b

    with recording() as recorder:
        asyncio.run(main())
    spans = {(s.name, s.tags["who"]): s for s in recorder.drain()}
    for who in "ab":
        assert spans["inner", who].parent == spans["outer", who].id
        assert spans["outer", who].parent == 0
    a, b = spans["inner", "a"], spans["inner", "b"]
    assert a.start_ns < b.start_ns < a.end_ns < b.end_ns, "they did interleave"


def test_a_thread_started_from_a_coroutine_nests_under_it() -> None:
    def work() -> None:
        with span("thread"):
            pass

    async def main() -> None:
        with span("coroutine"):
            await asyncio.to_thread(work)

    with recording() as recorder:
        asyncio.run(main())
    inner, outer = recorder.drain()
    assert (inner.name, inner.parent) == ("thread", outer.id)


def test_a_span_closed_in_another_context_does_not_raise() -> None:
    def generator() -> Iterator[None]:
        with span("crossing"):
            yield

    with recording() as recorder:
        crossing = generator()
        contextvars.copy_context().run(next, crossing)
        assert next(crossing, "ended") == "ended"
    assert [s.name for s in recorder.drain()] == ["crossing"]


def test_an_error_goes_through_and_is_noted() -> None:
    with recording() as recorder, pytest.raises(KeyError), span("failing"):
        raise KeyError
    (failed,) = recorder.drain()
    assert failed.error == "KeyError" and failed.duration_s >= 0
    with recording() as recorder, span("after"):
        pass
    assert recorder.drain()[0].parent == 0, "the failed span is no longer the current one"


def test_drain_gives_each_span_once_and_open_ones_later() -> None:
    with recording() as recorder:
        with span("open"):
            with span("done"):
                pass
            assert [s.name for s in recorder.drain()] == ["done"]
            assert recorder.drain() == []
        assert [s.name for s in recorder.drain()] == ["open"]


def test_memory_is_bounded_and_what_is_lost_is_counted() -> None:
    with recording(capacity=10) as recorder:
        for i in range(25):
            with span(f"s{i}"):
                pass
    assert recorder.statistics() == {"spans": 10, "capacity": 10, "dropped": 15, "open": 0}
    assert [s.name for s in recorder.drain()] == [f"s{i}" for i in range(15, 25)]


def test_counters_add_up_over_threads() -> None:
    def work() -> None:
        for _ in range(500):
            count("episodes")
            count("tokens", 3)

    with recording() as recorder:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert recorder.counters() == {"episodes": 2000.0, "tokens": 6000.0}


def test_without_a_recorder_nothing_is_kept_and_recorders_stack() -> None:
    with span("unseen"):
        count("unseen")
    with recording() as outer:
        with recording() as inner, span("inner"):
            count("n")
        with span("outer"):
            pass
    with span("unseen"):
        pass
    assert [s.name for s in inner.drain()] == ["inner"] and inner.counters() == {"n": 1.0}
    assert [s.name for s in outer.drain()] == ["outer"] and outer.counters() == {}


def made(name: str, start_ns: int, end_ns: int) -> SpanRecord:
    return SpanRecord(1, 0, name, start_ns, end_ns, {}, None)


def test_busy_share_counts_overlap_once_and_clips() -> None:
    spans = [made("a", 0, 20), made("a", 10, 30), made("b", 0, 100), made("a", 90, 500)]
    assert busy_share(spans, "a", since_ns=0, until_ns=100) == 0.4
    assert busy_share(spans, "a", since_ns=20, until_ns=40) == 0.5
    assert busy_share(spans, "none", since_ns=0, until_ns=100) == 0.0
    with pytest.raises(ValueError, match="must be after"):
        busy_share(spans, "a", since_ns=5, until_ns=5)


@given(st.lists(st.tuples(st.integers(-5, 25), st.integers(0, 10))), st.integers(0, 10), st.integers(1, 10))
def test_busy_share_is_the_share_of_covered_nanoseconds(pairs: list[tuple[int, int]], since: int, width: int) -> None:
    spans = [made("a", start, start + length) for start, length in pairs]
    covered = sum(any(s.start_ns <= t < s.end_ns for s in spans) for t in range(since, since + width))
    assert busy_share(spans, "a", since_ns=since, until_ns=since + width) == covered / width
