"""The pipeline's figures: `python benchmarks/pipeline.py [--only SCENARIO] [--quick]`.

Writes bench-out/pipeline.json; a run of one scenario keeps the others' figures there. All but `learning`, which
takes six whole trainings and is asked for by name, take about half an hour on two quiet cores.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
TARGET = HERE.parent / "bench-out" / "pipeline.json"
NAMES = (
    "spans", "many", "engine-bound", "whole", "sync", "shapes", "rollout", "loop", "mix", "faults", "learning"
)  # fmt: skip
ASKED = {
    "span_on_us": "≤ 1", "span_off_us": "≤ 0.25", "step_cpu_us": "≤ 150", "rss_mb_10k": "≤ 1024",
    "loop_lag_ms_p99": "≤ 50", "busy_share": "≥ 0.95", "bound_share": "≥ 0.95", "idle_share": "≤ 0.05",
    "bound_share_whole": "≥ 0.90", "vs_tunix_200ms": "≥ 10", "vs_tunix_loop": "≥ 10", "mix_error_50": "≤ 0.02",
    "mix_error_window_10": "≤ 0.05", "mix_idle_share": "≤ 0.10", "fault_cost": "≤ 1.1",
    "learning_score_difference": "≥ -0.03", "learning_time_ratio": "≤ 0.7",
}  # fmt: skip


@click.command()
@click.option("--only", type=click.Choice(NAMES), multiple=True, help="Only this scenario; repeatable.")
@click.option("--quick", is_flag=True, help="Fewer steps: figures that show the way, not to be quoted.")
@click.option("--here", is_flag=True, hidden=True, help="In this process: one scenario's figures as JSON.")
def main(only: tuple[str, ...], quick: bool, here: bool) -> None:
    """Measures, prints one table, and writes bench-out/pipeline.json."""
    if here:
        print(json.dumps(_measured(only[0], quick), default=str))
        return
    figures = json.loads(TARGET.read_text()) if only and TARGET.is_file() else {}
    for name in only or [each for each in NAMES if each != "learning"]:
        started = time.monotonic()
        figures.pop(f"{name}_failed", None)
        figures |= _in_own_process(name, quick) | {f"{name}_s": round(time.monotonic() - started, 1)}
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(json.dumps(figures | {"quick": quick}, indent=2) + "\n")
    Console().print(_table(figures))


def _in_own_process(name: str, quick: bool) -> Mapping[str, Any]:
    """So that one scenario's memory, threads and compiled programs are not the next one's."""
    command = [sys.executable, __file__, "--here", "--only", name, *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {f"{name}_failed": f"it ended with {done.returncode}; its errors are above"}
    return json.loads(done.stdout.splitlines()[-1])


def _measured(name: str, quick: bool) -> Mapping[str, Any]:
    logging.disable(logging.WARNING)
    if name == "spans":
        from spans import figures

        return figures()
    from pipeline_scenarios import SCENARIOS

    return SCENARIOS[name](quick)


def _table(figures: Mapping[str, Any]) -> Table:
    table = Table("", "measured", "asked", title="the pipeline")
    for name, value in figures.items():
        if isinstance(value, int | float | str):
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            table.add_row(name, shown, ASKED.get(name, ""))
    return table


if __name__ == "__main__":
    main()
