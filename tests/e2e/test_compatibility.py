"""Environments written for the well-known classes of the same names run after changing their imports."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunix_core.config import SuiteConfig, load_config
from tunix_core.contracts import RolloutRequest, Sampling
from tunix_core.plugins import Hub
from tunix_core.rollout import run_episode
from tunix_core.run import train
from tunix_core.run.build import connect, prepare
from tunix_core.testing.chat import FakeChatFormat
from tunix_core.testing.engine import FakeEngine
from tunix_core.types import SampleId, Task, Trajectory

HERE = Path(__file__).parent
# What one adds to train on them: the specs, and where the tasks come from.
REGISTER = """
from tunix_core import EnvSpec, Option, Task, hookimpl

class Tasks:
    def __init__(self, split, seed):
        self.split = split

    def get(self, i):
        payload = {"question": f"{i} * 6?", "answer": str(i * 6), "start": 3 + i % 9}
        return Task(f"{self.split}-{i}", payload, self.split)

    def __len__(self):
        return 40

@hookimpl
def tunix_register_envs(register):
    for name, target, turns in (
        ("countdown", "CountdownEnv", 3),
        ("old-countdown", "OldCountdownEnv", 3),
        ("quiz", "QuizEnv", 1),
        ("math", "MathToolEnv", 4),
    ):
        options = {"color": Option("red"), "bonus": Option(0.0)} if "countdown" in name else {}
        more = {"options": options, "score_range": (0.0, 2.0), "max_turns": turns}
        register(EnvSpec(name, f"familiar:{target}", "legacy:Tasks", **more))
    register(EnvSpec("fields", "familiar:FieldsEnv", "legacy:Tasks", max_turns=1))

@hookimpl
def tunix_make_env(spec, task):
    if spec.id == "legacy/fields":
        from familiar import FieldsEnv

        return FieldsEnv.from_dict({name: task.payload[name] for name in ("question", "answer")})
"""
TASK = Task("t", {"question": "7 * 6?", "answer": "42", "start": 4})
RUN = """
model = "models/nano"
model_options = { random = 1 }
steps = 2
run_dir = "run"
plugins = ["./legacy.py"]

[trainer]
groups_per_step = 5
rows = 2
row_tokens = 256

[engine]
slots = 16
max_context = 256
prefill_chunk = 16
decode_steps = 2
"""
NAMES = ("countdown", "old-countdown", "quiz", "math", "fields")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    (tmp_path / "legacy.py").write_text(REGISTER)
    yield Hub.load(["legacy.py"])
    for name in ("legacy", "familiar"):
        sys.modules.pop(name, None)


def play(hub: Hub, name: str, *said: str, **fields: Any) -> Trajectory:
    """One episode in which the policy says these texts."""
    bench = prepare(SuiteConfig(env=f"legacy/{name}", name=name, **fields), hub)
    policy: Any = SimpleNamespace(chat=FakeChatFormat())

    async def episode() -> Trajectory:
        suite = connect(bench, hub, FakeEngine([text.encode() for text in said]), policy)
        request = RolloutRequest(SampleId(name, 0, 0), TASK, 5, 0, Sampling(max_tokens=200), bench.max_turns)
        try:
            return await run_episode(request, suite)
        finally:
            await suite.opener.aclose()
            await suite.scorer.aclose()

    return asyncio.run(episode())


def texts(trajectory: Trajectory, role: str) -> list[str]:
    return [message.text for message in trajectory.messages if message.role == role]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_only_the_imports_are_ours() -> None:
    ours = [line for line in (HERE / "familiar.py").read_text().splitlines() if "tunix" in line]
    assert [line.split(" import ")[0] for line in ours] == ["from tunix_core.envs", "from tunix_core.tools"]


@pytest.mark.parametrize("name", ["countdown", "old-countdown"])
def test_template_methods_with_done_and_info(hub: Hub, name: str) -> None:
    won = play(hub, name, "a", "bcd", options={"bonus": 0.5})
    assert texts(won, "user") == ["4 letters to go.", "step 1: 3 left"]
    assert (won.status, won.step_rewards, won.turns) == ("terminated", (0.0, 1.5), 2)
    assert won.score and won.score.value == 1.5
    assert (won.info["left"], won.info["color"]) == (0, "red")
    assert ("began" in won.info) == (name == "old-countdown")
    cut = play(hub, name, "a", "b", "c")
    assert (cut.status, cut.stop_reason, cut.turns) == ("truncated", "max_steps", 3)


@pytest.mark.parametrize("isolation", ["in-process", "process"])
def test_a_single_turn_is_graded_by_its_reward_function(hub: Hub, isolation: Any) -> None:
    right, wrong = (play(hub, "quiz", said, isolation=isolation) for said in (" 42", "41"))
    assert texts(right, "user") == ["7 * 6?"]
    assert [t.score.value for t in (right, wrong) if t.score] == [1.0, 0.0]
    assert right.info["metadata"] == {"is_correct": True} and right.info["response"] == " 42"


def test_from_dict_makes_an_environment_of_a_task(hub: Hub) -> None:
    from familiar import CountdownEnv, MathToolEnv, QuizEnv

    countdown = CountdownEnv.from_dict({"task": {"start": 1}, "max_steps": 5, "color": "blue"})
    assert countdown.reset() == ({"question": "1 letters to go."}, {})
    assert countdown.step("a").done and countdown.extra_kwargs == {"color": "blue"} and countdown.max_steps == 5
    math = MathToolEnv.from_dict({"question": "7 * 6?", "answer": "42", "max_steps": 2})
    assert math.reset()[0] == {"question": "7 * 6?", "answer": "42"} and math.max_steps == 2
    finish = {"function": {"name": "finish", "arguments": {"response": "42"}}}
    assert math.step([finish]).reward == 1.0
    quiz = QuizEnv.from_dict({"question": "7 * 6?", "answer": "42", "reward_fn": None, "group_id": 3})
    assert quiz.task == {"question": "7 * 6?", "answer": "42"} and quiz.step("41").reward == 0.0


def test_a_plugin_makes_those_whose_constructor_takes_something_else(hub: Hub) -> None:
    won = play(hub, "fields", "42")
    assert texts(won, "user") == ["7 * 6?"]
    assert won.score and won.score.value == 1.0 and won.info == {"is_correct": True}


def test_a_tool_map_and_finish(hub: Hub) -> None:
    both = call("multiply", a=7, b=6) + call("multiply", a=7, b=0)
    won = play(hub, "math", both, call("multiply", b=6), call("finish", response="42"))
    assert texts(won, "tool") == ["42", "Error: zero is dull", won.messages[-2].text]
    assert won.messages[-2].text.startswith("Error: ")  # arguments are missing
    assert (won.status, won.turns) == ("terminated", 3) and won.score and won.score.value == 1.0


def test_they_train_together(hub: Hub) -> None:
    suites = "".join(
        f'[[suite]]\nenv = "legacy/{name}"\ngroup_size = 2\nsampling = {{ max_tokens = 6 }}\n' for name in NAMES
    )
    Path("run.toml").write_text(RUN + suites)
    result = train(load_config("run.toml"), hub=hub)
    assert result.summary["failures"] == {name: {} for name in (f"legacy/{name}" for name in NAMES)}
    assert result.summary["mix_error"] == 0 and result.summary["steps"] == 2
    episodes = [json.loads(line) for line in (result.run_dir / "trajectories.jsonl").read_text().splitlines()]
    assert {episode["env"] for episode in episodes} == {f"legacy/{name}" for name in NAMES}
    assert all(episode["score"] is not None for episode in episodes)
