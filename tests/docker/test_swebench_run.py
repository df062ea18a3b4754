"""`swebench/mini` in whole runs of a small policy, which resolves nothing: the mix holds, and nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import docker
import pytest
from tunix_env_swebench import building, mini
from tunix_env_swebench.tasks import load_rows

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
OURS = [row["instance_id"] for row in mini.mini_rows() if "patch" in row["source"]]
CONFIG = f"""
model = "models/nano"
steps = 3
[trainer]
groups_per_step = 3
rows = 2
row_tokens = 1024
[engine]
slots = 8
max_context = 1024
[[suite]]
env = "swebench/mini"
group_size = 2
max_turns = 2
sampling = {{ max_tokens = 16 }}
options = {{ only = {json.dumps(OURS)}, eval_share = 0, memory_mb = 512, disk_mb = 64 }}
[[suite]]
env = "games/frozen-lake"
group_size = 4
max_turns = 4
sampling = {{ max_tokens = 4 }}
[[suite]]
env = "math/arithmetic"
group_size = 4
sampling = {{ max_tokens = 6 }}
"""


@pytest.fixture(scope="module")
def images(base_image: str) -> set[str]:
    client = docker.from_env(timeout=600)
    rows = [row for row in load_rows("mini") if row.instance_id in OURS]
    for row in rows:
        if not building.is_built(client, row):
            building.build(client, row, base_image, mini.DATA)
    client.close()
    return {row.image_name for row in rows}


def tunix(*arguments: str) -> str:
    command = (sys.executable, "-m", "tunix_core.cli", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def containers_of(images: set[str]) -> list[Any]:
    client = docker.from_env()
    found = [each for each in client.api.containers(all=True) if each["Image"] in images]
    client.close()
    return found


def test_a_mix_with_games_and_math_holds(images: set[str], tmp_path: Path) -> None:
    config = tmp_path / "mix.toml"
    config.write_text(CONFIG)
    run_dir = tmp_path / "run"
    tunix("train", str(config), "-o", f"run_dir={run_dir}")
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    suites = ("swebench/mini", "games/frozen-lake", "math/arithmetic")
    assert [rows[-1][f"suite/{name}/consumed"] for name in suites] == [3, 3, 3] and rows[-1]["mix_error"] == 0
    for name in ("none_share", "score", "signal_share"):  # a step says these of what came in since the one before
        assert {row[key] for row in rows if (key := f"suite/swebench/mini/{name}") in row} == {0}
    assert not containers_of(images)


def test_a_model_is_evaluated_on_it(images: set[str]) -> None:
    only = json.dumps(OURS)
    found = json.loads(tunix("eval", "swebench/mini", "--n", "1", "-o", f"only={only}", "-o", "eval_share=1", "--json"))
    assert (found["n"], found["mean"], found["none"]) == (1, 0, 0)
    assert not containers_of(images)
