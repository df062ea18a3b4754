"""A run's trace, read back with Perfetto's own messages."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from tunix_core.errors import UsageError
from tunix_core.profiling import SpanLog, note, recording, span
from tunix_core.reporting import write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    with recording() as recorder:
        log = SpanLog(recorder, tmp_path / "spans", every_s=1e6)
        with span("group", suite="lake", group=3):
            with span("episode", suite="lake", group=3, sample=0, attempt=0):
                with span("engine.generate", turn=0):
                    note("engine.slot", 1e-4, slot=5, tokens=9)
                with span("env.step", turn=0), span("episode", suite="lake", group=3, sample=1, attempt=0):
                    pass
            note("queue", 1e-5, suite="lake", group=3)
        for worker in range(2):
            with span("engine.round", worker=worker), span("engine.decode", version=1):
                pass
        with span("trainer.accumulate", step=2, suite="lake", group=3):
            pass
        log.close()
    rows = [{"step": 2, "until_s": 1e9, "tokens_per_s": 12.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert write_trace(tmp_path, tmp_path / "out") == 12
    found = Trace()
    found.ParseFromString((tmp_path / "out").read_bytes())
    return found


def tracks(trace: Trace) -> dict[int, str]:
    """The track's whole path by its id."""
    own = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}

    def path(uuid: int) -> str:
        above = own[uuid].parent_uuid
        return f"{path(above)}/{own[uuid].name}" if above else own[uuid].name

    return {uuid: path(uuid) for uuid in own}


def slices(trace: Trace) -> list[Any]:
    events = [p.track_event for p in trace.packet if p.HasField("track_event")]
    return [event for event in events if event.type == TrackEvent.TYPE_SLICE_BEGIN]


def test_there_is_a_track_for_each_suite_room_and_slot(trace: Trace) -> None:
    names = tracks(trace)
    where = sorted((names[event.track_uuid], event.name) for event in slices(trace))
    assert where == [
        ("engine", "engine.decode"),
        ("engine", "engine.round"),
        ("engine slots/slot 5", "engine.slot"),
        ("engine/worker 1", "engine.decode"),
        ("engine/worker 1", "engine.round"),
        ("lake/episodes/0", "engine.generate"),
        ("lake/episodes/0", "env.step"),
        ("lake/episodes/0", "episode"),
        ("lake/episodes/1", "episode"),
        ("lake/groups/0", "group"),
        ("lake/in the queue/0", "queue"),
        ("trainer", "trainer.accumulate"),
    ]


def test_an_arrow_leads_from_each_episode_to_the_step_that_trained_it(trace: Trace) -> None:
    began = [event for event in slices(trace) if event.flow_ids]
    (ended,) = [event for event in slices(trace) if event.terminating_flow_ids]
    assert {event.name for event in began} == {"episode"} and len(began) == 2
    assert ended.name == "trainer.accumulate"
    assert sorted(ended.terminating_flow_ids) == sorted(each for event in began for each in event.flow_ids)


def test_slices_have_arguments_their_own_and_those_around(trace: Trace) -> None:
    (step,) = [event for event in slices(trace) if event.name == "env.step"]
    said = {note.name: note.string_value or note.int_value for note in step.debug_annotations}
    assert said == {"suite": "lake", "group": 3, "sample": 0, "attempt": 0, "turn": 0}


def test_counters_follow_spans_and_metrics(trace: Trace) -> None:
    names = tracks(trace)
    seen: dict[str, list[float]] = {}
    for packet in trace.packet:
        if packet.track_event.type == TrackEvent.TYPE_COUNTER:
            seen.setdefault(names[packet.track_event.track_uuid], []).append(packet.track_event.double_counter_value)
    assert seen["counters/episodes in flight"] == [1, 2, 1, 0]
    assert seen["counters/engine slots in use"] == [1, 0]
    assert seen["counters/tokens_per_s"] == [12.5]


def test_a_run_without_spans_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"profiling\.spans"):
        write_trace(tmp_path, tmp_path / "out")


def test_without_the_package_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def lacking(name: str, *rest: Any) -> Any:
        if name.startswith("perfetto"):
            raise ImportError(name)
        return whole(name, *rest)

    (tmp_path / "spans").mkdir()
    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(UsageError, match=r"pip install 'tunix-core\[report\]'"):
        write_trace(tmp_path, tmp_path / "out")
