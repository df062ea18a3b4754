"""A run's spans as a file that ui.perfetto.dev opens.

A track per suite with its groups and episodes (as many lanes as run side by side), one per room, one
per engine slot; counters; an arrow from each episode to the step that trained it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tunix_core.errors import UsageError
from tunix_core.profiling import SpanRecord, read_spans
from tunix_core.reporting.run_dir import read_rows

ROOMS = {"engine": "engine", "trainer": "trainer", "weights": "weights", "loop": "event loop"}
SIDE_BY_SIDE = {
    "episode": "episodes",
    "group": "groups",
    "queue": "in the queue",
    "wait.episode_slot": "waiting for a place among the episodes",
}
COUNTED = {"episode": "episodes in flight", "engine.slot": "engine slots in use", "queue": "groups in the queue"}
METRICS = ("tokens_per_s", "staleness_mean", "busy/engine", "busy/trainer", "loop/lag_ms_p99", "goodput")
MISSING = "`tunix trace` needs the package `perfetto`: pip install 'tunix-core[report]'"
Key = tuple[Any, ...]


def write_trace(run: Path, target: Path) -> int:
    """Writes the spans of the run directory `run` to `target`; how many slices it has.

    Raises:
        UsageError: there are no spans in `run`, or the package `perfetto` is missing.
    """
    if not (run / "spans").is_dir():
        raise UsageError(f"{run} has no spans. Runs write them unless profiling.spans = false; name another run.")
    spans = sorted(read_spans(run / "spans"), key=lambda span: (span.start_ns, -span.end_ns))
    trace = _Trace()
    _slices(trace, spans)
    _counters(trace, spans)
    for row in read_rows(run):
        for name in METRICS:
            if name in row and "until_s" in row:
                trace.count(name, int(row["until_s"] * 1e9), row[name])
    if (run / "jax").is_dir():
        from tunix_core.profiling.jax import read_window

        for each in read_window(run / "jax"):
            trace.slice(trace.track(*each.track), each.name, each.start_ns, each.end_ns)
    target.write_bytes(trace.serialised())
    return len(spans)


class _Trace:
    """Tracks, slices and counters as Perfetto's packets."""

    def __init__(self) -> None:
        try:
            from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
            from perfetto.trace_builder.proto_builder import TraceProtoBuilder
        except ImportError as error:
            raise UsageError(MISSING) from error
        self._builder, self._kinds = TraceProtoBuilder(), TrackEvent
        self._tracks: dict[Key, int] = {}

    def track(self, *path: Any, counter: bool = False) -> int:
        """The track of that path of names; made, with those above it, when it is new."""
        if path not in self._tracks:
            above = self.track(*path[:-1]) if len(path) > 1 else None
            descriptor = self._builder.add_packet().track_descriptor
            descriptor.uuid = self._tracks[path] = len(self._tracks) + 1
            *_, descriptor.name = map(str, path)
            if above is not None:
                descriptor.parent_uuid = above
            if counter:
                descriptor.counter.SetInParent()
        return self._tracks[path]

    def slice(
        self,
        track: int,
        name: str,
        start_ns: int,
        end_ns: int,
        arguments: Mapping[str, Any] = {},
        flows: tuple[Iterable[int], Iterable[int]] = ((), ()),
    ) -> None:
        """`flows`: ids of the arrows that begin here, and of those that end here."""
        begin = self._event(track, start_ns, self._kinds.TYPE_SLICE_BEGIN)
        begin.name = name
        begin.flow_ids.extend(flows[0])
        begin.terminating_flow_ids.extend(flows[1])
        for name, value in arguments.items():
            note = begin.debug_annotations.add()
            note.name = name
            if isinstance(value, int) and not isinstance(value, bool):
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.string_value = str(value)
        self._event(track, end_ns, self._kinds.TYPE_SLICE_END)

    def count(self, name: str, at_ns: int, value: float) -> None:
        event = self._event(self.track("counters", name, counter=True), at_ns, self._kinds.TYPE_COUNTER)
        event.double_counter_value = value

    def serialised(self) -> bytes:
        return self._builder.serialize()

    def _event(self, track: int, at_ns: int, kind: Any) -> Any:
        packet = self._builder.add_packet()
        packet.timestamp, packet.trusted_packet_sequence_id = at_ns, 1
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        return packet.track_event


def _slices(trace: _Trace, spans: list[SpanRecord]) -> None:
    tags, lanes = _Inherited(spans), _Lanes()
    trained = {(s.tags.get("suite"), s.tags.get("group")): s for s in spans if s.name == "trainer.accumulate"}
    members: dict[Key, list[int]] = {}
    for span in spans:  # an episode that was trained has an arrow of its own id
        group = tags.of(span).get("suite"), tags.of(span).get("group")
        if span.name == "episode" and group in trained:
            members.setdefault(group, []).append(span.id)
    for span in spans:
        own = tags.of(span)
        group = own.get("suite"), own.get("group")
        begins = [span.id] if span.name == "episode" and group in trained else []
        ends = members.get(group, []) if trained.get(group) is span else []
        arguments = {**own, "error": span.error} if span.error else own
        track = trace.track(*lanes.place(span, own))
        trace.slice(track, span.name, span.start_ns, span.end_ns, arguments, (begins, ends))


class _Inherited:
    """Each span's tags with those of the spans it lies in."""

    def __init__(self, spans: Iterable[SpanRecord]) -> None:
        self._spans = {span.id: span for span in spans}
        self._found: dict[int, Mapping[str, Any]] = {0: {}}

    def of(self, span: SpanRecord) -> Mapping[str, Any]:
        if span.id not in self._found:
            above = self._spans.get(span.parent)
            self._found[span.id] = {**(self.of(above) if above else {}), **span.tags}
        return self._found[span.id]


class _Lanes:
    """Where each span is drawn. Spans come in order of starting.

    Slices of one track must nest. What runs side by side in a suite (groups, episodes) gets the first
    lane that is free; what lies inside of one is drawn in its lane.
    """

    def __init__(self) -> None:
        self._of: dict[int, Key] = {}
        self._free: dict[Key, list[int]] = {}
        self._busy: dict[Key, list[tuple[int, int]]] = {}

    def place(self, span: SpanRecord, tags: Mapping[str, Any]) -> Key:
        """The track's path: (suite, "episodes", lane), (room,) or ("engine slots", number)."""
        path = self._path(span, tags)
        self._of[span.id] = path
        return path

    def _path(self, span: SpanRecord, tags: Mapping[str, Any]) -> Key:
        room = span.name.partition(".")[0]
        if span.name == "engine.slot":
            return "engine slots", f"slot {tags['slot']}"
        if span.name in SIDE_BY_SIDE:
            return self._lane((tags.get("suite", "suites"), SIDE_BY_SIDE[span.name]), span)
        if span.parent in self._of:
            return self._of[span.parent]
        if room == "engine" and tags.get("worker"):  # the others beside the first
            return ROOMS[room], f"worker {tags['worker']}"
        return ("waits", span.name) if room == "wait" else (ROOMS.get(room, room),)

    def _lane(self, family: Key, span: SpanRecord) -> Key:
        busy, free = self._busy.setdefault(family, []), self._free.setdefault(family, [])
        while busy and busy[0][0] <= span.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (span.end_ns, lane))
        return *family, lane


def _counters(trace: _Trace, spans: Iterable[SpanRecord]) -> None:
    changes = sorted(
        (at_ns, change, COUNTED[span.name])
        for span in spans
        if span.name in COUNTED
        for at_ns, change in ((span.start_ns, 1), (span.end_ns, -1))
    )
    now = dict.fromkeys(COUNTED.values(), 0)
    for at_ns, change, name in changes:
        now[name] += change
        trace.count(name, at_ns, now[name])
