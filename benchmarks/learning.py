"""Does each algorithm learn? `python benchmarks/learning.py algorithms | stale | scales [--seeds 3]`.

algorithms: every policy gradient with its defaults, on policy. stale: GRPO and its corrections on tokens of
eight versions ago. scales: two suites whose rewards differ by a factor of 1,000, normalised three ways.
Prints a table of held-out scores before and after, and keeps what was run in bench-out/learning-*.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ALGORITHMS = [
    "grpo",
    "dr-grpo",
    "dapo",
    "gspo",
    "cispo",
    "cispo-cap",
    "sapo",
    "dppo-tv",
    "rloo",
    "reinforce-pp",
    "reinforce-pp-baseline",
    "max-rl",
    "gdpo",
    "ppo",
]
CORRECTIONS = [
    "decoupled",
    "token_tis",
    "icepop",
    "product_weight",
    "product_gate",
    "sequence_tis",
    "geometric_gate",
    "opsm",
    "a3po",
]
LAG = 7  # versions by which the engine's weights are late; a token is trained one or two versions after that
STALE = ["scheduler.mode=in_flight", f"scheduler.max_staleness={LAG + 2}", "scheduler.max_episodes=128"]
TUNIX, LATE = ["-m", "tunix_core.cli"], [str(HERE / "learning_late.py"), str(LAG)]
SCALES = ("suite", "batch", "none")


def rows(part: str) -> Iterator[tuple[str, str, list[str]]]:
    """A row's name, its config file, and what it sets."""
    if part == "algorithms":
        for name in ALGORITHMS:
            yield name, "learning.toml", [f"trainer.algorithm=algorithms/{name}"]
    elif part == "stale":
        yield "none", "learning.toml", STALE
        for name in CORRECTIONS:
            yield (
                name,
                "learning.toml",
                [*STALE, "trainer.old_logp=proximal", f"trainer.options.corrections.{name}={{}}"],
            )
    else:
        for scope in SCALES:
            yield scope, "scales.toml", [f"trainer.options.normalise={scope}"]


def run(program: list[str], config: str, settings: list[str], seed: int) -> dict[str, Any]:
    """One training run: per suite before and after, its seconds, and the staleness of its tokens."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"run_dir={folder}/run", f"seed={seed}", *settings]
        arguments = [part for option in options for part in ("-o", option)]
        command = [sys.executable, *program, "train", str(HERE / config), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        steps = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    staleness = statistics.mean(row["staleness_mean"] for row in steps)
    return {"suites": summary["suites"], "train_s": summary["train_s"], "staleness": staleness}


def line(name: str, runs: list[dict[str, Any]]) -> str:
    """A row of the table: mean ± deviation of each suite's gain over the seeds."""
    cells = []
    for suite in runs[0]["suites"]:
        before = [each["suites"][suite]["before"] for each in runs]
        after = [each["suites"][suite]["after"] for each in runs]
        gains = [b - a for a, b in zip(before, after, strict=True)]
        cells += [f"{statistics.mean(before):.3f}", f"{statistics.mean(after):.3f}"]
        cells += [f"{statistics.mean(gains):+.3f} ± {statistics.pstdev(gains):.3f}", f"{min(gains):+.3f}"]
    cells += [f"{statistics.mean(each['staleness'] for each in runs):.1f}"]
    cells += [f"{statistics.median(each['train_s'] for each in runs):.0f}"]
    return "| " + " | ".join([name, *cells]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("algorithms", "stale", "scales"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows, by name, with commas between")
    parser.add_argument("--out", type=Path, default=Path("bench-out"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / f"learning-{given.part}.json"
    program = LATE if given.part == "stale" else TUNIX
    found: dict[str, Any] = json.loads(kept.read_text()) if given.only and kept.exists() else {}
    for name, config, settings in rows(given.part):
        if given.only and name not in given.only.split(","):
            continue
        found[name] = [run(program, config, settings, seed) for seed in range(given.seeds)]
        kept.write_text(json.dumps(found, indent=1))
        print(line(name, found[name]), flush=True)


if __name__ == "__main__":
    main()
