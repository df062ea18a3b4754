"""Scenario 5: the quickstart with environments that sleep 250 ms a step, in flight and on policy."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

from pipeline_rig import RUNS

from tunix_core.config import load_config
from tunix_core.plugins import Hub
from tunix_core.run import train

HERE = Path(__file__).parent
QUICKSTART = HERE.parent / "examples" / "quickstart.toml"
SUITES = {"games/": "pipeline_sleep/", "math/": "pipeline_sleep/"}


def learning(quick: bool) -> dict[str, Any]:
    """Held-out score after training and the seconds of training, over three seeds (quick: one, of ten steps)."""
    found: dict[str, list[tuple[float, float]]] = {"in_flight": [], "on_policy": []}
    for seed in range(1 if quick else 3):
        for mode, results in found.items():
            results.append(_one(mode, seed, 10 if quick else None))
    scores, seconds = ({mode: [r[i] for r in results] for mode, results in found.items()} for i in (0, 1))
    means = {mode: statistics.mean(values) for mode, values in scores.items()}
    return {
        "learning_score_difference": means["in_flight"] - means["on_policy"],
        "learning_time_ratio": sum(seconds["in_flight"]) / sum(seconds["on_policy"]),
        "learning_scores": scores,
        "learning_train_s": seconds,
    }


def _one(mode: str, seed: int, steps: int | None) -> tuple[float, float]:
    path = RUNS / f"learning-{mode}-{seed}"
    shutil.rmtree(path, ignore_errors=True)
    text = QUICKSTART.read_text()
    for inside, asleep in SUITES.items():
        text = text.replace(f'env = "{inside}', f'env = "{asleep}')
    given = [f"seed={seed}", f"run_dir={path}", f"scheduler.mode={mode}", "checkpoint.every_steps=100000"]
    given += [] if steps is None else [f"steps={steps}", "eval.n=20"]
    summary = train(load_config(None, given, text=text), hub=Hub.load(files=[HERE / "pipeline_sleep.py"])).summary
    return summary["mean_after"], summary["train_s"]
