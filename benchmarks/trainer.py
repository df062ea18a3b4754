"""The training step's figures: `python benchmarks/trainer.py [--only SCENARIO]`.

Writes bench-out/trainer.json; a run of one scenario keeps the others' figures there. All of it takes about a quarter
of an hour on two quiet cores. Peers run in virtual environments of their own, `torch/` and `tunix/` in .venv-peers/
or where BENCH_PEERS says; one that is absent is said, never made up.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
TARGET = HERE.parent / "bench-out" / "trainer.json"
PEERS = {"trl": ("torch", "trl_grpo.py"), "tunix": ("tunix", "google_tunix_grpo.py")}
NAMES = ("gemm", "prefix", "nano", "step")
LIMIT_S = 420.0
ASKED = {
    "gemm_share": "≥ 0.75", "prefix_speedup": "≥ 2.5", "dispatch_share_nano": "≤ 0.1", "vs_trl": "> 1",
    "vs_tunix": "> 1", "memory_vs_trl": "beside",
}  # fmt: skip


@click.command()
@click.option("--only", type=click.Choice(NAMES), multiple=True, help="Only this scenario; repeatable.")
@click.option("--layers", default=30, help="Of the model; 30 is SmolLM2-135M. Fewer show that it runs.")
@click.option("--here", is_flag=True, hidden=True, help="In this process: one scenario's figures as JSON.")
def main(only: tuple[str, ...], layers: int, here: bool) -> None:
    """Measures, prints one table, and writes bench-out/trainer.json."""
    if here:
        from trainer_scenarios import SCENARIOS

        print(json.dumps(SCENARIOS[only[0]](layers)))
        return
    figures = json.loads(TARGET.read_text()) if only and TARGET.is_file() else {}
    figures["layers"] = layers
    for name in only or NAMES:
        figures.pop(name, None)  # what once went wrong
        figures |= _own(name, layers) if name != "step" else _beside_peers(layers)
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(json.dumps(figures, indent=2) + "\n")
    Console().print(_table(figures))


def _own(name: str, layers: int) -> Mapping[str, Any]:
    """In a process of its own, so that one scenario's memory and programs are not the next one's."""
    found = _told([sys.executable, __file__, "--here", "--only", name, "--layers", str(layers)])
    return {name: found} if isinstance(found, str) else found


def _beside_peers(layers: int) -> dict[str, Any]:
    """Samples per second of a whole step, and the ratios to each peer's."""
    ours = _own("step", layers)
    figures = dict(ours)
    for name, (environment, script) in PEERS.items():
        found = _peer(environment, script, layers)
        if isinstance(found, str):
            figures[f"vs_{name}"] = found
            continue
        seconds = statistics.median(found["seconds"][1:])  # the first has what only it does
        figures[f"{name}_samples_per_s"] = found["samples"] / seconds
        figures[f"{name}_steps"] = len(found["seconds"]) - 1
        figures[f"{name}_peak_mb"] = found["peak_mb"]
        if "samples_per_s" in ours:
            figures[f"vs_{name}"] = ours["samples_per_s"] * seconds / found["samples"]
            figures[f"memory_vs_{name}"] = ours["peak_mb"] / found["peak_mb"]
    return figures


def _peer(environment: str, script: str, layers: int) -> Any:
    home = Path(os.environ.get("BENCH_PEERS", HERE.parent / ".venv-peers"))
    python = home / environment / "bin" / "python"
    if not python.is_file():
        return f"absent: there is no {environment}/bin/python in {home.name}/"
    return _told([str(python), str(HERE / "peers" / script), str(layers)])


def _told(command: Sequence[str]) -> Any:
    """The last JSON object the command printed, though it was stopped for its time; or what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as stopped:
        told = _last_object((stopped.stdout or b"").decode())
        return told or f"not measured: it took longer than {LIMIT_S:.0f} s"
    if done.returncode:
        return f"not measured: it ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    return _last_object(done.stdout)


def _last_object(text: str) -> Any:
    """Peers print other things too."""
    for line in reversed(text.splitlines()):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return None


def _table(figures: Mapping[str, Any]) -> Table:
    table = Table("", "measured", "asked", title="the training step")
    for name, value in figures.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(name, shown, ASKED.get(name, ""))
    return table


if __name__ == "__main__":
    main()
