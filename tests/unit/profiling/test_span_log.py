"""Spans on disk: readable while they are written, whole after a kill, the same as in memory."""

from __future__ import annotations

import time
from pathlib import Path

from tunix_core.profiling import SpanLog, SpanRecord, note, read_spans, recording, span

NEVER_S = 1e6


def shown(spans: list[SpanRecord]) -> list[tuple[str, dict[str, object], str | None]]:
    return [(each.name, dict(each.tags), each.error) for each in spans]


def test_what_is_flushed_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    with recording() as recorder:
        log = SpanLog(recorder, tmp_path / "spans", every_s=NEVER_S)
        with span("outer", suite="s"):
            with span("inner", turn=1):
                pass
            log.flush()
            assert shown(list(read_spans(tmp_path / "spans"))) == [("inner", {"turn": 1}, None)]
        log.close()
    inner, outer = read_spans(tmp_path / "spans")
    assert inner.parent == outer.id and outer.parent == 0
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert abs(outer.end_ns - time.time_ns()) < 60e9


def test_times_lengths_and_errors_survive(tmp_path: Path) -> None:
    seen: list[SpanRecord] = []
    with recording() as recorder:
        log = SpanLog(recorder, tmp_path / "spans", seen.extend, every_s=NEVER_S)
        for index in range(1200):  # more than one piece
            note("n", index / 1e3, index=index)
        try:
            with span("failing", path=tmp_path):
                raise KeyError
        except KeyError:
            pass
        log.close()
    read = list(read_spans(tmp_path / "spans"))
    assert [(s.id, s.end_ns - s.start_ns) for s in read] == [(s.id, s.end_ns - s.start_ns) for s in seen]
    assert shown(read[-1:]) == [("failing", {"path": str(tmp_path)}, "KeyError")]


def test_a_span_still_open_at_the_end_is_written_as_such(tmp_path: Path) -> None:
    with recording() as recorder:
        log = SpanLog(recorder, tmp_path / "spans", every_s=NEVER_S)
        with span("endless"):
            log.close()
    assert shown(list(read_spans(tmp_path / "spans"))) == [("endless", {}, "open")]


def test_a_second_process_writes_beside_the_first_whatever_a_kill_left(tmp_path: Path) -> None:
    folder = tmp_path / "spans"
    for name in ("first", "second"):
        with recording() as recorder:
            log = SpanLog(recorder, folder, every_s=NEVER_S)
            with span(name):
                pass
            log.flush()
            with span("lost"):
                pass
            log.close()
        path = sorted(folder.iterdir())[-1]
        path.write_bytes(path.read_bytes()[:-30])  # what a kill leaves: the last piece is not whole
    read = list(read_spans(folder))
    assert [s.name for s in read] == ["first", "second"]
    assert len({s.id for s in read}) == 2


def test_without_a_folder_nothing_is_written_and_spans_are_watched(tmp_path: Path) -> None:
    seen: list[SpanRecord] = []
    with recording() as recorder:
        log = SpanLog(recorder, None, seen.extend, every_s=NEVER_S)
        with span("a"):
            pass
        log.close()
    assert [s.name for s in seen] == ["a"] and list(tmp_path.iterdir()) == []
