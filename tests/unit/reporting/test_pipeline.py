"""What a run's shares say: by hand-made rows."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from tunix_core.reporting import pipeline_summary, pipeline_table


def row(window_s: float = 1.0, **shares: float) -> dict[str, Any]:
    named = {f"barrier/{name}": value for name, value in shares.items()}
    return {"window_s": window_s, "busy/engine": 0.3, "busy/trainer": 0.2, "idle_share": 0.5, **named, "goodput": 0.75}


def test_shares_are_weighted_by_their_windows() -> None:
    found = pipeline_summary([row(1.0, mix=0.4), {"step": 7}, row(3.0, mix=0.0)])
    assert found["shares"]["barrier/mix"] == pytest.approx(0.1) and found["shares"]["busy/engine"] == pytest.approx(0.3)
    assert found["goodput"] == 0.75
    assert pipeline_summary([{"step": 0}]) == {}


@pytest.mark.parametrize(
    ("barrier", "bound_by", "advises"),
    [
        ("staleness", "the staleness bound", "raise scheduler.max_staleness or trainer.groups_per_step"),
        ("admission", "the staleness bound, at admission", "raise scheduler.max_staleness or trainer.groups_per_step"),
        ("mix", "the mix", "the slowest is slow/env, 9.0 s an episode"),
        ("hand_over", "the hand-over of weights", 'scheduler.mode = "in_flight"'),
        ("environment", "the environments", "raise scheduler.max_episodes"),
    ],
)
def test_the_barrier_that_holds_most_is_named_with_what_would_help(barrier: str, bound_by: str, advises: str) -> None:
    latency = {"suite/slow/env/latency_s": 9.0, "suite/quick/latency_s": 0.1}
    found = pipeline_summary([row(**{barrier: 0.3}) | latency])
    assert found["bound_by"] == bound_by
    assert len(found["advice"]) == 1 and advises in found["advice"][0] and "30%" in found["advice"][0]


def test_a_run_whose_engine_never_rests_is_bound_by_it() -> None:
    found = pipeline_summary([row(environment=0.01) | {"busy/engine": 0.97, "idle_share": 0.02}])
    assert found["bound_by"] == "the engine" and found["advice"] == []
    found = pipeline_summary([row(staleness=0.4) | {"busy/trainer": 0.99, "idle_share": 0.01}])
    assert found["bound_by"] == "the trainer", "what waits meanwhile holds nobody up"


def test_the_table_shows_shares_and_advice() -> None:
    console = Console(width=100, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as shown:
        console.print(pipeline_table(pipeline_summary([row(mix=0.3)])))
    assert "barrier/mix" in shown.get() and "30.0%" in shown.get() and "bound by the mix" in shown.get()
