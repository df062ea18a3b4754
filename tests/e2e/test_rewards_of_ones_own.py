"""A reward of one's own in a whole run, in each of the three ways there are."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunix_core.config import load_config
from tunix_core.errors import CheckpointError, UnknownIdError
from tunix_core.plugins import Hub
from tunix_core.run import train

RUN = """
model = "models/nano"
model_options = {{ random = 1 }}
steps = 2
run_dir = "{run_dir}"
plugins = {plugins}

[trainer]
groups_per_step = 2
rows = 2
row_tokens = 128

[engine]
slots = 8
max_context = 128
prefill_chunk = 16
decode_steps = 2

[[suite]]
env = "math/arithmetic"
group_size = 4
sampling = {{ max_tokens = 6 }}
rewards = {rewards}
"""
REWARD = """
from tunix_core import RewardSpec, hookimpl
from tunix_core.rewards import reward

@reward(range=(0.0, 1.0))
def various(episode, target=40):
    return min(1.0, len(set(episode.final_text)) / target)

@hookimpl
def tunix_register_rewards(register):
    register(RewardSpec("{id}", "{module}:various", "many letters"))
"""
WATCH = """
import json
from tunix_core import hookimpl

@hookimpl
def tunix_trajectory_scored(ctx, trajectory, score):
    row = [ctx.suite, str(ctx.sample), score.value, dict(score.parts)]
    with (ctx.run_dir / "watched.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\\n")
"""
BREAK = """
from tunix_core import hookimpl

@hookimpl
def tunix_trajectory_scored(trajectory):
    raise RuntimeError("the observer broke")
"""
Go = Callable[..., SimpleNamespace]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Go]:
    """`go(rewards, plugins)` trains as a config file in tmp_path says: its hub, lock and episodes."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def launch(rewards: str = '["env"]', plugins: str = "[]", **how: Any) -> SimpleNamespace:
        text = RUN.format(run_dir=tmp_path / "run", rewards=rewards, plugins=plugins)
        (tmp_path / "run.toml").write_text(text)
        config = load_config(tmp_path / "run.toml")
        hub = Hub.load(config.plugins.files)
        run_dir = train(config, hub=hub, **how).run_dir
        lock = json.loads((run_dir / "lock.json").read_text())
        return SimpleNamespace(
            hub=hub, run_dir=run_dir, locked=lock["distributions"], episodes=lines(run_dir / "trajectories.jsonl")
        )

    yield launch
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def check_scores(run: SimpleNamespace, part: str, weight: float, target: int) -> None:
    """Each score is the environment's own plus this part, which is what the function gives."""
    assert len(run.episodes) >= 16 and len(lines(run.run_dir / "metrics.jsonl")) == 2
    for episode in run.episodes:
        assert episode["parts"].keys() == {"env", part}
        said = episode["messages"][-1]
        assert said["role"] == "assistant" and episode["parts"][part] == min(1.0, len(set(said["text"])) / target)
        assert episode["score"] == pytest.approx(episode["parts"]["env"] + weight * episode["parts"][part])
    assert len({episode["parts"][part] for episode in run.episodes}) > 1


def test_a_reward_of_an_installed_package(go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    info = site / "acme_rewards-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rewards\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[tunix]\nacme = acme_rewards\n")
    (site / "acme_rewards.py").write_text(REWARD.format(id="acme/various", module="acme_rewards"))
    monkeypatch.syspath_prepend(site)

    run = go('["env", { id = "acme/various", weight = 0.5 }]')
    check_scores(run, "acme/various", weight=0.5, target=40)
    assert run.locked["acme-rewards"] == "1.2"


def test_a_reward_of_a_file_that_the_config_names(go: Go, tmp_path: Path) -> None:
    file = tmp_path / "my_rewards.py"
    file.write_text(REWARD.format(id="various", module="my_rewards"))
    how = ('["env", { id = "my_rewards/various", options = { target = 20 } }]', '["./my_rewards.py"]')

    run = go(*how)
    check_scores(run, "my_rewards/various", weight=1.0, target=20)
    assert len(run.locked["file:my_rewards"]) == 64

    file.write_text(file.read_text().replace("target=40", "target=4"))
    with pytest.raises(CheckpointError, match=r"distributions\.file:my_rewards: was '[0-9a-f]{64}', is "):
        go(*how, resume=True)


def test_a_reward_that_nobody_registered_ends_the_run_before_it_writes(go: Go, tmp_path: Path) -> None:
    with pytest.raises(UnknownIdError, match="no installed package has namespace 'acme'"):
        go('["acme/various"]')
    assert not (tmp_path / "run").exists()


def test_an_observer_sees_each_score_beside_one_that_raises(
    go: Go, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "watch.py").write_text(WATCH)
    (tmp_path / "breaks.py").write_text(BREAK)
    with caplog.at_level(logging.WARNING, "tunix_core"):
        run = go(plugins='["./breaks.py", "./watch.py"]')
    watched = {row[1]: row for row in lines(run.run_dir / "watched.jsonl")}
    for episode in run.episodes:
        assert watched[episode["id"]] == ["math/arithmetic", episode["id"], episode["score"], episode["parts"]]
    assert len(lines(run.run_dir / "metrics.jsonl")) == 2
    assert len(watched) >= 16 and run.hub.hooks.failures() == {("breaks", "tunix_trajectory_scored"): len(watched)}
    said = "tunix_trajectory_scored failed and is left out: RuntimeError: the observer broke"
    (reported,) = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    assert "breaks" in reported
