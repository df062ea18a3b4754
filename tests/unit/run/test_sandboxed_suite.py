"""A suite whose environment needs a sandbox, played whole: tools of the hub, a reward that looks inside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunix_core.config import RewardConfig, SandboxConfig, SuiteConfig
from tunix_core.contracts import Sampling
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.run.build import connect, prepare
from tunix_core.run.evaluation import play
from tunix_core.run.sandboxes import make_sandboxes
from tunix_core.testing.chat import FakeChatFormat
from tunix_core.testing.engine import FakeEngine
from tunix_core.types import Trajectory

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


async def played(hub: Hub, env: str, **how: Any) -> list[Trajectory]:
    """Four episodes as a run plays them, with an engine that needs no model."""
    bench = prepare(SuiteConfig(env, name=env, rewards=(RewardConfig("rooms/wrote"),)), hub)
    sandboxes = make_sandboxes(SandboxConfig("sandboxes/local", **how), [bench], hub)
    assert sandboxes is not None
    policy: Any = SimpleNamespace(chat=FakeChatFormat())
    engine: Any = FakeEngine(lambda request: b"seven")
    suite = connect(bench, hub, engine, policy, sandboxes=sandboxes)
    try:
        return await play(suite, bench.tasks("eval", 0), 4, Sampling(), max_turns=1, seed=0)
    finally:
        await suite.opener.aclose()
        await suite.scorer.aclose()
        await sandboxes.aclose()


def test_a_suite_runs_in_sandboxes_and_nothing_is_left(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sandboxes").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "sandboxes"))
    trajectories = asyncio.run(played(hub, "rooms/any"))
    assert [t.score.value if t.score else None for t in trajectories] == [1.0] * 4, trajectories[0].failure
    assert "does not isolate" in caplog.text
    assert not list((tmp_path / "sandboxes").iterdir())


def test_one_that_asks_for_isolation_is_refused_before_anything_runs(hub: Hub) -> None:
    with pytest.raises(UsageError, match="unisolated"):
        asyncio.run(played(hub, "rooms/strict"))
