"""Runs the code blocks of docs/rewards.md as its reader would."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunix_core.config import RewardConfig, load_config
from tunix_core.contracts import Context, Episode, Scorer
from tunix_core.plugins import Hub
from tunix_core.rewards import close_shared_workers, make_scorer
from tunix_core.specs import Timeouts
from tunix_core.types import Message, SampleId, Score, Task, Trajectory

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rewards.md"
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every block in its own file, in a folder on the path."""
    for name, text in BLOCK.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)
    close_shared_workers()


def episode(text: str, gold: Any = None, tokens: int = 1) -> Episode:
    return Episode(Task("t", gold=gold), (Message.of("assistant", text),), (1.0,), sampled_tokens=tokens)


def scorer(hub: Hub, *parts: RewardConfig) -> Scorer:
    return make_scorer(parts, lambda id: hub.load_object("rewards", id), timeouts=Timeouts())


def test_every_block_is_a_file() -> None:
    text = PAGE.read_text()
    assert len(BLOCK.findall(text)) == text.count("```") / 2 == 8


def test_a_file_named_in_a_config_gives_a_reward_by_name(folder: Path) -> None:
    config = load_config(folder / "my_run.toml")
    hub = Hub.load(files=config.plugins.files)
    parts = config.suites[0].rewards
    score = asyncio.run(scorer(hub, *parts).score(episode("7", tokens=24)))
    assert score == Score(1.05, {"env": 1.0, "my_rewards/short": 0.5})


def test_an_installed_package_gives_a_reward_by_name(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / "acme_rewards-0.1.0.dist-info"
    info.mkdir()
    requires = "".join(f"Requires-Dist: {each}\n" for each in project["dependencies"])
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head + requires)
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["tunix"].items())
    (info / "entry_points.txt").write_text(f"[tunix]\n{points}")
    hub = Hub.load()
    values = [
        asyncio.run(scorer(hub, RewardConfig("acme/polite")).score(episode(t))).value for t in ("Please!", "Now!")
    ]
    assert values == [1.0, -1.0]


def test_an_observer_sees_each_scored_trajectory(folder: Path) -> None:
    hub = Hub.load(files=["./watch.py"])
    trajectory = Trajectory(SampleId("sums", 0, 0), "math/arithmetic", Task("t"), 0, turns=2)
    context = Context(run_dir=folder, suite="sums")
    hub.hooks.notify("tunix_trajectory_scored", ctx=context, trajectory=trajectory, score=Score(0.5, {"env": 0.5}))
    row = json.loads((folder / "watched.jsonl").read_text())
    assert row == {"suite": "sums", "score": 0.5, "turns": 2, "parts": {"env": 0.5}}


def test_a_cpu_bound_reward_of_a_file_runs_in_a_worker(folder: Path) -> None:
    part = scorer(Hub.load(files=["./proofs.py"]), RewardConfig("proofs/factors"))
    right, wrong, bad = (
        asyncio.run(part.score(e)) for e in (episode("3 5", 15), episode("1 15", 15), episode("3", "x"))
    )
    assert (right.value, wrong.value, bad.value) == (1.0, 0.0, None)
    assert bad.failure and bad.failure.kind == "bad_gold"


def test_a_group_reward_is_added_to_each_member(folder: Path) -> None:
    hub = Hub.load(files=["./ranks.py"])
    group = [episode("", tokens=n) for n in (3, 2)]
    ranked = scorer(hub, RewardConfig("ranks/shortest"))
    scores = asyncio.run(ranked.score_group(group, [Score(0.0), Score(0.0)]))
    assert [score.value for score in scores] == [0.0, 1.0]


def test_the_readers_own_test_passes(folder: Path) -> None:
    names: dict[str, Any] = {}
    exec((folder / "test_my_rewards.py").read_text(), names)
    names["test_short"]()
