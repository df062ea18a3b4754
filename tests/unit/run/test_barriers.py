"""Shares of the wall clock: which barrier a nanosecond belongs to."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import pytest

from tunix_core.profiling import SpanRecord, recording, span
from tunix_core.run.barriers import Barriers, by_kind, shares


def made(name: str, start: int, end: int, **tags: Any) -> SpanRecord:
    return SpanRecord(1, 0, name, start, end, tags, None)


def test_every_share_by_hand() -> None:
    spans = [
        made("engine.round", 0, 30),
        made("engine.round", 30, 40),
        made("trainer.accumulate", 35, 45),
        made("trainer.apply", 45, 50),
        made("env.step", 20, 70, turn=1),
        made("env.step", 60, 65),
        made("wait.staleness", 50, 55),
        made("wait.mix", 55, 65),
        made("wait.groups", 65, 80),
        made("weights.publish", 80, 82),
        made("wait.admission", 35, 60, reason="max_staleness"),
        made("wait.admission", 60, 90, reason="max_episodes"),
        made("episode", 0, 100),
    ]
    assert shares(by_kind(spans), 0, 100) == pytest.approx(
        {
            "busy/engine": 0.4,
            "busy/trainer": 0.15,
            "idle_share": 0.5,
            "barrier/staleness": 0.05,
            "barrier/mix": 0.1,
            "barrier/trainer_starved": 0.15,
            "barrier/engine_starved": 0.6,
            "barrier/admission": 0.1,
            "barrier/hand_over": 0.02,
            "barrier/environment": 0.2,
        }
    )


def test_a_window_counts_open_spans_up_to_its_end_and_the_rest_in_the_next() -> None:
    with recording() as recorder:
        barriers = Barriers(recorder)
        with span("wait.mix"):
            middle = perf_counter_ns()
            first_s, first = barriers.row(middle)
        with span("trainer.apply"):
            pass
        barriers.watch(recorder.drain())
        end = perf_counter_ns()
        second_s, second = barriers.row(end)
    assert 0 < first["barrier/mix"] <= 1 and first["busy/trainer"] == 0
    assert 0 < second["barrier/mix"] < 1 and 0 < second["busy/trainer"] < 1
    assert second_s == pytest.approx((end - middle) / 1e9) and first_s > 0


def test_a_long_windows_memory_is_bounded_and_its_shares_exact() -> None:
    with recording() as recorder:
        barriers = Barriers(recorder)
        start = perf_counter_ns()
        barriers.row(start)
        for lap in range(5):
            barriers.watch([made("env.step", start + i, start + i + 1) for i in range(lap, 50_000, 5)])
        assert len(barriers._ended["environment"]) <= 20_000
        _, found = barriers.row(start + 100_000)
    assert found["barrier/environment"] == pytest.approx(0.5)


def test_ages_in_the_queue_are_those_of_the_window() -> None:
    with recording() as recorder:
        barriers = Barriers(recorder)
        barriers.watch([made("queue", 0, int(1e9)), made("queue", 0, int(3e9))])
        _, found = barriers.row(perf_counter_ns())
        assert (found["queue/age_s_mean"], found["queue/age_s_max"]) == (2.0, 3.0)
        _, found = barriers.row(perf_counter_ns())
        assert (found["queue/age_s_mean"], found["queue/age_s_max"]) == (0.0, 0.0)
