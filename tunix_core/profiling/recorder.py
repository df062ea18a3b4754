"""Where finished spans and counters go, within bounded memory.

The current span lives in a context variable: each coroutine has its own, so spans of interleaved
coroutines nest as their code does.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from time import perf_counter_ns
from typing import Any, NamedTuple

_new_id = itertools.count(1).__next__
_parent: ContextVar[int] = ContextVar("tunix_span", default=0)


class SpanRecord(NamedTuple):
    """A finished span.

    Attributes:
        id, parent: parent is 0 for a span that has none.
        start_ns, end_ns: of `time.perf_counter_ns`.
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
        finished: what `drain` takes from.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self.dropped = 0
        self.capacity = capacity
        self.finished: deque[_Span] = deque(maxlen=capacity)
        self._counters: dict[str, float] = {}
        self._lock = threading.Lock()

    def drain(self) -> list[SpanRecord]:
        """The spans finished since the last call, in the order they ended. A span still open comes later."""
        drained = []
        for _ in range(len(self.finished)):
            drained.append(self.finished.popleft().record())
        return drained

    def counters(self) -> dict[str, float]:
        """Every counter's total so far."""
        with self._lock:
            return dict(self._counters)

    def statistics(self) -> dict[str, float]:
        """Spans waiting to be drained, the bound on them, and those dropped."""
        return {"spans": len(self.finished), "capacity": self.capacity, "dropped": self.dropped}

    def add(self, name: str, amount: float) -> None:
        with self._lock:
            self._counters[name] = self._counters.get(name, 0.0) + amount


class _Span:
    __slots__ = ("end_ns", "error", "id", "name", "parent", "recorder", "start_ns", "tags")

    def __init__(self, recorder: Recorder, name: str, tags: Mapping[str, Any]) -> None:
        self.recorder = recorder
        self.name = name
        self.tags = tags
        self.error: str | None = None

    def __enter__(self) -> None:
        self.parent = _parent.get()
        self.id = own = _new_id()
        _parent.set(own)
        self.start_ns = perf_counter_ns()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.end_ns = perf_counter_ns()
        # Not `reset(token)`: that raises when a generator is closed from another context.
        _parent.set(self.parent)
        if error is not None:
            self.error = error.__name__
        recorder = self.recorder
        if len(recorder.finished) == recorder.capacity:
            recorder.dropped += 1
        recorder.finished.append(self)

    def record(self) -> SpanRecord:
        return SpanRecord(self.id, self.parent, self.name, self.start_ns, self.end_ns, self.tags, self.error)


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


_NOTHING = _Nothing()
_active: Recorder | None = None


def span(name: str, **tags: Any) -> AbstractContextManager[None]:
    """Times what happens inside, under `name`; nothing when no recorder is on. Never raises of its own."""
    if _active is None:
        return _NOTHING
    return _Span(_active, name, tags)


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
