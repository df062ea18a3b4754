"""Summaries of evaluated episodes."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tunix_core.reporting import summarise, summary_table
from tunix_core.types import Failure, SampleId, Score, Task, TokenSpan, Trajectory


def episode(
    value: float | None,
    parts: Mapping[str, float | None] | None = None,
    *,
    stop_reason: str = "finished",
    failure: Failure | None = None,
    tokens: int = 2,
    turns: int = 1,
) -> Trajectory:
    zeros = np.zeros(tokens, np.int32)
    return Trajectory(
        SampleId("s", 0, 0),
        "e/x",
        Task("t"),
        0,
        spans=(TokenSpan.forced([7, 7, 7]), TokenSpan(zeros, True, zeros.astype(np.float32), zeros)),
        turns=turns,
        stop_reason=stop_reason,
        failure=failure,
        score=Score(value, parts or {}, failure),
    )


def test_what_has_no_score_is_counted_and_left_out_of_the_mean() -> None:
    lost = Failure("grader_lost", "reward.x", "gone")
    found = summarise(
        [
            episode(1.0, {"env": 1.0, "x": 0.5}),
            episode(0.0, {"env": 0.0, "x": None}, stop_reason="max_turns", turns=3, tokens=6),
            episode(None, {"env": 1.0}, stop_reason="grader_lost", failure=lost, turns=2, tokens=4),
        ]
    )
    assert found == {
        "n": 3,
        "mean": 0.5,
        "stderr": 0.5,
        "none": 1,
        "parts": {"env": pytest.approx(2 / 3), "x": 0.5},
        "statuses": {"finished": 1, "max_turns": 1, "grader_lost": 1},
        "failures": {"grader_lost": 1},
        "examples": {"grader_lost": f"{SampleId('s', 0, 0)} at {lost.boundary}: {lost.message}"},
        "turns": 2.0,
        "sampled_tokens": 4.0,
    }


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20))
def test_the_standard_error_is_of_the_mean(scores: list[float]) -> None:
    found = summarise([episode(score) for score in scores])
    assert found["mean"] == pytest.approx(statistics.fmean(scores), abs=1e-9)
    assert found["stderr"] == pytest.approx(statistics.stdev(scores) / len(scores) ** 0.5, abs=1e-9)


@pytest.mark.parametrize("episodes", [[], [episode(None)]])
def test_without_a_score_there_is_no_mean(episodes: list[Trajectory]) -> None:
    found = summarise(episodes)
    assert (found["n"], found["mean"], found["stderr"]) == (len(episodes), None, None)
    assert summarise([episode(1.0)])["stderr"] is None


def test_the_table_shows_each_suite_and_the_mean() -> None:
    summary = {
        "suites": {
            "games/frozen-lake": {"before": 0.25, "after": 0.875, "trained_share": 0.5},
            "[sums]": {"before": None, "after": None, "trained_share": 0.5},
        },
        "mean_before": 0.25,
        "mean_after": 0.875,
        "train_s": 61.4,
        "eval_s": 12.0,
        "steps": 100,
    }
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(summary))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert ["games/frozen-lake", "0.250", "0.875", "0.500"] in cells
    assert ["[sums]", "–", "–", "0.500"] in cells and ["mean", "0.250", "0.875", ""] in cells
    assert "100 steps, 61 s of training, 12 s of evaluation" in " ".join(text.split())
