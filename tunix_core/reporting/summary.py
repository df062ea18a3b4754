"""Scores of evaluated episodes, summarised per suite, and the table of before and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from tunix_core.types import Trajectory

TABLE_WIDTH = 60  # the title and the caption each on one line


def summarise(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Mean score with its standard error over the scored episodes, parts, statuses, failures with one example of each.

    `none` counts episodes without a score: they are left out of the mean, which is a bias.
    """
    scores = [t.score.value for t in trajectories if t.score and t.score.value is not None]
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in (trajectory.score.parts if trajectory.score else {}).items():
            if value is not None:
                parts.setdefault(name, []).append(value)
    failures = [(t.id, t.failure) for t in trajectories if t.failure]
    return {
        "n": len(trajectories),
        "mean": _mean(scores),
        "stderr": _stderr(scores),
        "none": len(trajectories) - len(scores),
        "parts": {name: _mean(values) for name, values in parts.items()},
        "statuses": dict(Counter(t.stop_reason for t in trajectories)),
        "failures": dict(Counter(failure.kind for _, failure in failures)),
        "examples": {failure.kind: f"{id} at {failure.boundary}: {failure.message}" for id, failure in failures[::-1]},
        "turns": _mean([float(t.turns) for t in trajectories]),
        "sampled_tokens": _mean([float(t.sampled_tokens) for t in trajectories]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _stderr(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table of a run's summary.json."""
    times = f"{summary['train_s']:.0f} s of training, {summary['eval_s']:.0f} s of evaluation"
    table = Table(
        title="greedy score on held-out tasks", caption=f"{summary['steps']} steps, {times}", min_width=TABLE_WIDTH
    )
    for column in ("suite", "before", "after", "trained share"):
        table.add_column(column, justify="left" if column == "suite" else "right")
    for name, row in summary["suites"].items():
        table.add_row(escape(name), _number(row["before"]), _number(row["after"]), _number(row["trained_share"]))
    table.add_section()
    table.add_row("mean", _number(summary["mean_before"]), _number(summary["mean_after"]), "")
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
