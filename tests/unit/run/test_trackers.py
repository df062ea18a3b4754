"""Trackers get every step under its own number; one that breaks is left out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunix_core.run.trackers import Trackers


class Tracker:
    """Keeps what it is told; raises at one step."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.breaks_at, self.told, self.closed = breaks_at, list[tuple[int, Mapping[str, float]]](), 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.breaks_at:
            raise ConnectionError("the server is gone")
        self.told.append((step, metrics))

    def close(self) -> None:
        self.closed += 1


def opened(tmp_path: Path, **made: Tracker) -> Trackers:
    """Trackers by id, each told the run directory."""

    def load(kind: str, id: str) -> Any:
        assert kind == "trackers"
        return lambda run_dir: made[id] if run_dir == tmp_path else None

    hub: Any = SimpleNamespace(load_object=load)
    return Trackers([*made], hub, tmp_path)


def test_each_gets_the_row_of_every_step_under_the_runs_own_number(tmp_path: Path) -> None:
    one, two = Tracker(), Tracker()
    trackers, told = opened(tmp_path, one=one, two=two), [(7, {"loss": 1.0}), (8, {"loss": 0.5, "new": 2.0})]
    for step, row in told:
        trackers.log(step, row)
    trackers.close()
    assert one.told == two.told == told
    assert one.closed == two.closed == 1


def test_one_that_breaks_is_reported_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Tracker(breaks_at=1), Tracker()
    trackers = opened(tmp_path, broken=broken, sound=sound)
    with caplog.at_level(logging.WARNING):
        for step in range(4):
            trackers.log(step, {})
    assert [step for step, _ in sound.told] == [0, 1, 2, 3] and [step for step, _ in broken.told] == [0]
    (record,) = caplog.records
    assert "tracker broken failed" in record.message and record.exc_info


def test_closing_twice_closes_once(tmp_path: Path) -> None:
    trackers = opened(tmp_path, one=(one := Tracker()))
    trackers.close()
    trackers.close()
    assert one.closed == 1
