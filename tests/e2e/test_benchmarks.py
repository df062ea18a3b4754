"""The benchmarks' rig still fits the rooms it replaces: it would be found out late otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_run_whose_trainer_costs_nothing_measures_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCHMARKS)])
    import pipeline_rig as rig  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(rig, "RUNS", tmp_path)
    config = rig.head(2, groups=2, episodes=16, engine="pipeline_env/fake") + rig.suite(turns=2, tokens=4)
    run = rig.whole_run("tiny", config, free=True)
    assert [row["step"] for row in run.rows] == [0, 1] and run.summary["steps"] == 2
    assert sum(span.name == "env.step" for span in run.spans) >= 2 * 2 * 8 * 2
    assert 0.0 <= run.shares["idle_share"] <= 1.0 and run.most_at_once("episode") <= 16


def test_late_weights_are_those_of_so_many_publications_ago_until_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCHMARKS)])
    import learning_late as late  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(late.LateWeights, "lag", 3)
    store = late.LateWeights(0, {"w": 0})
    seen = []
    for version in range(1, late.STEPS + 1):
        store.publish(version, {"w": version})
        seen.append((store.latest().version, store.latest().params["w"]))
    assert seen[:5] == [(0, 0), (0, 0), (0, 0), (1, 1), (2, 2)]
    assert seen[-2:] == [(late.STEPS - 4, late.STEPS - 4), (late.STEPS, late.STEPS)]
