"""Scenario 3: a fifth of the episodes fail, in every way and at every place; what it costs, and what is left behind."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

from pipeline_rig import Run, head, held, suite, whole_run

GROUPS = 32
LIMIT_S = 0.5
TIMEOUTS = f"timeouts = {{ step_s = {LIMIT_S}, reset_s = 30.0 }}\n"
REWARDS = 'rewards = ["pipeline_env/sometimes_nan"]\n'


def faults(quick: bool) -> dict[str, Any]:
    """The time of a useful group with and without failures, and what a process holds after thousands of them.

    `fault_cost` is the ratio of the two times, over the ratio of the work of all attempts to that of the useful
    ones, in sampled turns; 1 is no cost of failing beyond the work that was lost.
    """
    steps = 2 if quick else 20
    sound = whole_run("sound", head(steps, groups=GROUPS) + suite(more=TIMEOUTS + REWARDS, mean_s=0.02), free=True)
    gc.collect()
    before = held()
    faulty = whole_run(
        "faulty", head(steps, groups=GROUPS) + suite(more=TIMEOUTS + REWARDS, mean_s=0.02, faulty=0.2), free=True
    )
    gc.collect()
    after = held()
    return {
        "fault_cost": (_group_s(faulty) / _group_s(sound)) / _work(faulty),
        "fault_episodes": sum(span.name == "episode" for span in faulty.spans),
        "fault_kinds": faulty.summary["failures"],
        "fault_leaks": {name: after[name] - before[name] for name in before},
        "fault_threads": hanging_threads(),
        "fault_processes": hanging_processes(),
    }


def hanging_threads() -> dict[str, float]:
    """A blocking environment that hangs in a thread: how many threads it leaves at most."""
    more = TIMEOUTS + "max_abandoned = 4\n"
    run = whole_run(
        "hanging-threads",
        head(2, groups=2) + suite("pipeline_env/blocking", more=more, faulty=0.2, kinds=["hang"]),
        free=True,
    )
    return {"failures": sum(run.summary["failures"]["pipeline_env/blocking"].values()), "left": _threads_left()}


def hanging_processes() -> dict[str, float]:
    """The same in processes: none may be left."""
    before = held()["children"]
    more = TIMEOUTS + 'isolation = "process"\n'
    run = whole_run(
        "hanging-processes",
        head(2, groups=2) + suite("pipeline_env/blocking", more=more, faulty=0.2, kinds=["hang"]),
        free=True,
    )
    failures = sum(run.summary["failures"]["pipeline_env/blocking"].values())
    return {"failures": failures, "left": held()["children"] - before}


def _threads_left() -> int:
    return sum(thread.name.startswith("tunix-env") for thread in threading.enumerate())


def _group_s(run: Run) -> float:
    """Seconds from one consumed group to the next."""
    since, until = run.window
    taken = sum(span.name == "trainer.accumulate" and since <= span.end_ns < until for span in run.spans)
    return run.window_s / max(1, taken)


def _work(run: Run) -> float:
    """Turns of all attempts, over turns of those that got a score."""
    rows = [json.loads(line) for line in (run.path / "trajectories.jsonl").read_text().splitlines()]
    return sum(row["turns"] for row in rows) / max(1, sum(row["turns"] for row in rows if row["score"] is not None))
