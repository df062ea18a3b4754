"""Where finished spans and counters go, within bounded memory.

The current span lives in a context variable: each coroutine has its own, so spans of interleaved
coroutines nest as their code does.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from time import perf_counter_ns
from typing import Any, NamedTuple

_new_id = itertools.count(1).__next__
_current: ContextVar[_Span | None] = ContextVar("tunix_span", default=None)


class SpanRecord(NamedTuple):
    """A span.

    Attributes:
        id, parent: parent is 0 for a span that has none. What a tag doesn't say here, it may say there.
        start_ns, end_ns: of `time.perf_counter_ns`; read from a file, of `time.time_ns`.
        error: the type of the exception that left the span, or None.
    """

    id: int
    parent: int
    name: str
    start_ns: int
    end_ns: int
    tags: Mapping[str, Any]
    error: str | None

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Recorder:
    """Keeps the last `capacity` finished spans until they are drained; older ones are dropped and counted.

    Attributes:
        dropped: spans that were pushed out before anyone drained them.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self.dropped = 0
        self.capacity = capacity
        self.finished: deque[_Span] = deque(maxlen=capacity)
        self.opened: set[_Span] = set()
        self._counters: dict[str, float] = {}
        self._lock = threading.Lock()

    def drain(self) -> list[SpanRecord]:
        """The spans finished since the last call, in the order they ended. A span still open comes later."""
        take = self.finished.popleft
        return [_ended(take()) for _ in range(len(self.finished))]

    def open(self, names: Container[str] | None = None) -> list[SpanRecord]:
        """The spans that are open now, as if they ended now; only those of some names, if given. Safe from any
        thread."""
        now, opened = perf_counter_ns(), list(self.opened)
        return [_going(each, now) for each in opened if names is None or each.name in names]

    def counters(self) -> dict[str, float]:
        """Every counter's total so far."""
        with self._lock:
            return dict(self._counters)

    def statistics(self) -> dict[str, float]:
        """Spans waiting to be drained, the bound on them, those dropped, and those open."""
        return {
            "spans": len(self.finished),
            "capacity": self.capacity,
            "dropped": self.dropped,
            "open": len(self.opened),
        }

    def add(self, name: str, amount: float) -> None:
        with self._lock:
            self._counters[name] = self._counters.get(name, 0.0) + amount

    def keep(self, span: _Span) -> None:
        if len(self.finished) == self.capacity:
            self.dropped += 1
        self.finished.append(span)


class _Span:
    """Made by `span` without an `__init__`: a call of Python from C for each would cost a tenth of the whole."""

    __slots__ = ("end_ns", "error", "id", "name", "parent", "recorder", "start_ns", "tags")
    id: int
    name: str
    tags: Mapping[str, Any]
    parent: _Span | None
    recorder: Recorder
    start_ns: int
    end_ns: int
    error: type[BaseException] | None

    def __enter__(self) -> None:
        _current.set(self)
        self.start_ns = perf_counter_ns()
        self.recorder.opened.add(self)

    def __exit__(self, error: type[BaseException] | None, _: object, __: object) -> None:
        self.end_ns = perf_counter_ns()
        self.error = error
        # Not `reset(token)`: that raises when a generator is closed from another context.
        _current.set(self.parent)
        recorder = self.recorder
        recorder.opened.discard(self)
        finished = recorder.finished
        if len(finished) == recorder.capacity:
            recorder.dropped += 1
        finished.append(self)


class _Nothing:
    """Its methods are built in, since a `with` statement calls those without a Python frame."""

    __slots__ = ()
    __enter__ = "".format
    __exit__ = "".format


_NOTHING: Any = _Nothing()
_new_span = _Span.__new__
_active: Recorder | None = None


def span(name: str, **tags: Any) -> AbstractContextManager[None]:
    """Times what happens inside, under `name`; nothing when no recorder is on. Never raises of its own."""
    if _active is None:
        return _NOTHING
    made = _new_span(_Span)
    made.id, made.name, made.tags = _new_id(), name, tags
    made.recorder, made.parent = _active, _current.get()
    return made  # type: ignore[return-value]


def note(name: str, duration_s: float, **tags: Any) -> None:
    """A span that ends now and began `duration_s` seconds ago, for what no `with` statement can hold."""
    if _active is None:
        return
    made: _Span = span(name, **tags)  # type: ignore[assignment]
    made.end_ns, made.error = perf_counter_ns(), None
    made.start_ns = made.end_ns - int(duration_s * 1e9)
    made.recorder.keep(made)


def current_span() -> _Span | None:
    """The span that the code which calls this is in; for `continue_span`."""
    return _current.get()


def continue_span(inside: _Span | None) -> None:
    """What follows in this task is inside that span: for a task that works for others."""
    _current.set(inside)


def count(name: str, amount: float = 1.0) -> None:
    """Adds to a counter of the recorder that is on, if any. Safe from any thread."""
    if _active is not None:
        _active.add(name, amount)


@contextmanager
def recording(capacity: int = 65536) -> Iterator[Recorder]:
    """Turns recording on, for the whole process. An inner one takes over until it ends."""
    global _active
    outer, recorder = _active, Recorder(capacity)
    _active = recorder
    try:
        yield recorder
    finally:
        _active = outer


def _ended(span: _Span) -> SpanRecord:
    parent, error = span.parent, span.error
    above, kind = 0 if parent is None else parent.id, None if error is None else error.__name__
    return SpanRecord(span.id, above, span.name, span.start_ns, span.end_ns, span.tags, kind)


def _going(span: _Span, now_ns: int) -> SpanRecord:
    above = 0 if span.parent is None else span.parent.id
    return SpanRecord(span.id, above, span.name, span.start_ns, max(now_ns, span.start_ns), span.tags, None)
