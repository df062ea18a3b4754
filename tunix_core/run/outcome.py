"""What a run comes to: its result, and summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunix_core.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        summary: what summary.json holds.
        exit_code: 0 when it ended by itself, 130 when it was interrupted.
    """

    run_dir: Path
    summary: Mapping[str, Any]
    exit_code: int = 0


def summary_of(scheduler: Scheduler, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The mix, the failures, and each suite before and after training."""
    consumed = scheduler.consumed
    total = max(1, sum(consumed.values()))
    suites = {
        name: {
            "before": before.get(name, {}).get("mean"),
            "after": after.get(name, {}).get("mean"),
            "trained_share": consumed[name] / total,
        }
        for name in consumed
    }
    return {
        "suites": suites,
        "mean_before": _mean([row["before"] for row in suites.values()]),
        "mean_after": _mean([row["after"] for row in suites.values()]),
        "mix_error": scheduler.mix_error(),
        "dropped": scheduler.dropped,
        "quarantined": dict(scheduler.failures.quarantined),
        "failures": {name: dict(kinds) for name, kinds in scheduler.failures.counts.items()},
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
