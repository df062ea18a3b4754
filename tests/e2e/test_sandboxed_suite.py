"""A suite whose environment needs a sandbox, played whole: tools of the hub, a reward that looks inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunix_core import run
from tunix_core.config import EngineConfig, RewardConfig, SandboxConfig
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub

PLUGIN = '''
from tunix_core import EnvSpec, RewardSpec, StepResult, Task, hookimpl
from tunix_core.envs import BaseTaskEnv
from tunix_core.rewards import reward
from tunix_core.sandboxes import SandboxRequest
from tunix_core.tools import as_tool


class Rooms(BaseTaskEnv):
    """Writes what the policy says into a file of its sandbox, with a tool."""

    async def _initial_observation(self):
        self.sandbox = await self.sandboxes.open(SandboxRequest())
        self.edit = as_tool(self.find_tool("tools/edit"), sandbox=self.sandbox)
        return "Say a number."

    async def _step_impl(self, action):
        await self.edit.fn(action="create", path="said.txt", text="said: " + action)
        return StepResult("", 0.0, terminated=True)


class Tasks:
    def get(self, index):
        return Task(str(index), {"number": index}, split="eval")

    def __len__(self):
        return 4


def make_tasks(split, seed):
    return Tasks()


@reward(range=(0.0, 1.0))
async def wrote(episode):
    """1 when the file is there, in the sandbox while it is open."""
    return float((await episode.sandbox.read("said.txt")).startswith(b"said: "))


@hookimpl
def tunix_register_envs(register):
    register(EnvSpec("rooms/any", "rooms:Rooms", "rooms:make_tasks", requires=("sandbox",)))
    register(EnvSpec("rooms/strict", "rooms:Rooms", "rooms:make_tasks", requires=("isolated-sandbox",)))


@hookimpl
def tunix_register_rewards(register):
    register(RewardSpec("rooms/wrote", "rooms:wrote"))
'''


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    (tmp_path / "rooms.py").write_text(PLUGIN)
    return Hub.load([tmp_path / "rooms.py"])


def evaluate(hub: Hub, env: str, **how: Any) -> Any:
    local = SandboxConfig("sandboxes/local", **how)
    engine = EngineConfig(slots=4, max_context=64, prefill_chunk=16, decode_steps=1)
    rewards = [RewardConfig("rooms/wrote")]
    return run.evaluate(env, hub=hub, n=4, max_tokens=4, rewards=rewards, sandbox=local, engine=engine)


def test_a_suite_runs_in_sandboxes_and_nothing_is_left(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sandboxes").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "sandboxes"))
    found = evaluate(hub, "rooms/any")
    assert (found["mean"], found["none"], found["n"]) == (1.0, 0, 4)
    assert "does not isolate" in capsys.readouterr().err
    assert not list((tmp_path / "sandboxes").iterdir())


def test_one_that_asks_for_isolation_is_refused_before_anything_runs(hub: Hub) -> None:
    with pytest.raises(UsageError, match="unisolated"):
        evaluate(hub, "rooms/strict")
