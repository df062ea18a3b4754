"""A run that is stopped, or killed, goes on where its last checkpoint stands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest
from small_run import SMALL, SUITE, TROUBLE

STEPS = 60


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    text = SMALL.format(steps=STEPS, run_dir=tmp_path / "run") + "\n[checkpoint]\nevery_steps = 1\n"
    (tmp_path / "config.toml").write_text(text + SUITE.format(options="latency_s = 0.05"))
    return tmp_path / "run"


def command(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tunix_core.cli", "train", str(config), "-p", str(TROUBLE), *arguments]


def start(run_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts the run, in a process group of its own, and returns once it has taken two steps."""
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
    process = subprocess.Popen(
        command(run_dir.parent / "config.toml", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + 200
    while len(steps(run_dir)) < 2:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def steps(run_dir: Path) -> list[int]:
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def goes_on(run_dir: Path) -> None:
    target = len(steps(run_dir)) + 2
    resumed = subprocess.run(
        command(run_dir / "config.toml", "--resume", "-o", f"steps={target}"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert steps(run_dir) == list(range(target))
    nothing_was_lost(run_dir, target)


def newest(run_dir: Path) -> dict[str, Any]:
    """What the newest checkpoint holds besides parameters."""
    step = int((run_dir / "checkpoints" / "LATEST").read_text())
    return json.loads((run_dir / "checkpoints" / f"step-{step:08d}" / "extra.json").read_text())


def nothing_was_lost(run_dir: Path, target: int) -> None:
    """Every ticket was consumed once, or waits; the clock of the metrics went on."""
    extra = newest(run_dir)
    cursor = extra["tasks"]["trouble/env"]
    assert extra["consumed"] == {"trouble/env": 4 * target}
    assert cursor["next"] - len(cursor["unconsumed"]) == 4 * target
    times = [json.loads(line)["time_s"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert times == sorted(times)


def test_ctrl_c_once_ends_cleanly_and_says_how_to_go_on(run_dir):
    process = start(run_dir)
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "config.toml --resume" in " ".join(said.split())
    assert "Traceback" not in said
    goes_on(run_dir)


def test_ctrl_c_twice_stops_at_once(run_dir):
    process = start(run_dir)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said


def test_a_killed_run_resumes(run_dir):
    process = start(run_dir)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    finished = {f"trouble/env#{group['index']}.0.0" for group in newest(run_dir)["groups"]}
    goes_on(run_dir)
    ran = Counter(json.loads(line)["id"] for line in (run_dir / "trajectories.jsonl").read_text().splitlines())
    assert {name: ran[name] for name in finished} == dict.fromkeys(finished, 1), "what was finished isn't run again"
