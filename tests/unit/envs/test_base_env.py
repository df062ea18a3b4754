"""BaseTaskEnv, TaskEnvironment, and observations as messages."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunix_core.envs import BaseTaskEnv, EnvStepResult, TaskEnvironment, to_messages
from tunix_core.errors import EnvError
from tunix_core.types import Message, StepResult, Task


class Counting(BaseTaskEnv):
    """Gives, step by step, what the test put into `results`."""

    results: tuple[Any, ...] = ()
    closed = 0

    def _initial_observation(self) -> Any:
        return f"{self.seed} {self.rng.integers(1000)}"

    def _step_impl(self, action: Any) -> Any:
        self.last = action
        return self.results[self.step_count - 1]

    def _close(self) -> None:
        self.closed += 1


class AsyncCounting(Counting):
    async def _initial_observation(self) -> Any:
        return Counting._initial_observation(self)

    async def _step_impl(self, action: Any) -> Any:
        return Counting._step_impl(self, action)

    async def _close(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        Counting._close(self)


def value(given: Any) -> Any:
    async def wait() -> Any:
        return await given

    return asyncio.run(wait()) if inspect.isawaitable(given) else given


@pytest.mark.parametrize("cls", [Counting, AsyncCounting])
def test_sync_and_async_templates_give_the_same_episode(cls: type[Counting]) -> None:
    env = cls({"a": 1}, max_steps=2)
    env.results = (StepResult("one", 1), StepResult("two", 2))
    assert inspect.isawaitable(opening := env.reset(seed=3)) == (cls is AsyncCounting)
    assert value(opening) == (f"3 {np.random.default_rng(3).integers(1000)}", {})
    assert value(env.step("x")) == StepResult("one", 1.0)
    assert value(env.step(Message.of("assistant", "said"))).info == {"truncated_by": "max_steps"}
    assert env.last == "said"
    value(env.close())
    assert env.close() is None and env.closed == 1


def test_reset_begins_anew_and_takes_no_seed() -> None:
    env = Counting(max_steps=5)
    env.results = (StepResult("one"),)
    first = env.reset(seed=1)
    env.step("x")
    assert env.reset(seed=1) == first and env.step_count == 0
    env.reset()
    assert env.seed is None and env.task == {} and env.extra_kwargs == {}


@pytest.mark.parametrize(
    "given",
    [
        StepResult("o", 1.0, True, False, {"k": 1}),
        EnvStepResult(observation="o", reward=1.0, done=True, info={"k": 1}),
        EnvStepResult("o", 1, True, {"k": 1}),
        ("o", 1.0, True, {"k": 1}),
        ("o", np.float32(1), np.bool_(True), {"k": 1}),
        ("o", True, True, False, {"k": 1}),
    ],
)
def test_every_known_form_of_a_result_is_accepted(given: Any) -> None:
    env = Counting(max_steps=1)
    env.results = (given,)
    env.reset(0)
    result = env.step("x")
    assert result == StepResult("o", 1.0, True, False, {"k": 1})
    assert type(result.reward) is float and type(result.terminated) is bool


@pytest.mark.parametrize(
    "given",
    [None, "o", ("o", 1.0), ("o", float("nan"), False, {}), ("o", "1", False, {}), ("o", np.ones(2), False, {})],
)
def test_another_result_breaks_the_contract(given: Any) -> None:
    env = Counting()
    env.results = (given,)
    env.reset(0)
    with pytest.raises(EnvError) as caught:
        env.step("x")
    assert caught.value.kind == "env_contract"


def test_the_task_is_a_payload_and_a_whole() -> None:
    task = Task("t", {"nested": {"n": 1}}, gold="g", difficulty=3)
    env = BaseTaskEnv(task, color="red")
    env.task["nested"]["n"] = 2
    assert task.payload == {"nested": {"n": 1}} and env.full_task is task
    assert env.extra_kwargs == {"color": "red"}
    payload = {"a": 1}
    assert BaseTaskEnv(payload).task is payload and BaseTaskEnv(payload).full_task.payload == {"a": 1}


def test_a_missing_template_method_is_named() -> None:
    with pytest.raises(NotImplementedError, match="BaseTaskEnv must define _initial_observation"):
        BaseTaskEnv({}).reset()
    with pytest.raises(NotImplementedError, match="BaseTaskEnv must define _step_impl"):
        BaseTaskEnv({}).step("x")


def test_a_task_environment_grades_one_answer() -> None:
    seen: list[Any] = []

    def reward_fn(task: Any, action: Any) -> Any:
        seen.append((task, action))
        return SimpleNamespace(reward=np.float64(0.5), metadata={"why": "half"})

    env = TaskEnvironment({"question": "q?"}, reward_fn=reward_fn, group_id=4)
    observation, info = env.reset()
    assert to_messages(observation) == (Message.of("user", "q?"),) and info == {}
    result = env.step(Message.of("assistant", "a"))
    assert (result.reward, result.terminated, result.truncated) == (0.5, True, False)
    assert result.info == {"response": "a", "metadata": {"why": "half"}}
    assert seen == [({"question": "q?"}, "a")] and env.extra_kwargs == {"group_id": 4}


def test_a_reward_may_be_async_and_defaults_to_zero() -> None:
    async def reward_fn(task: Any, action: Any) -> float:
        return float(action == "yes")

    assert value(TaskEnvironment({}, reward_fn=reward_fn).step("yes")).reward == 1.0
    assert TaskEnvironment({}).step("yes").reward == 0.0


def test_a_reward_that_is_none_breaks_the_contract() -> None:
    with pytest.raises(EnvError, match="the reward of a NoneType must be a finite number"):
        TaskEnvironment({}, reward_fn=lambda task, action: None).step("x")


def test_from_dict_splits_the_task_from_the_rest() -> None:
    arguments = {"question": "q", "reward_fn": lambda task, action: 2.0, "group_id": 1}
    env = TaskEnvironment.from_dict(arguments)
    assert env.task == {"question": "q"} and env.step("x").reward == 2.0 and "reward_fn" in arguments
    assert Counting.from_dict({"task": {"a": 1}, "max_steps": 4}).max_steps == 4


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (None, []),
        ({}, []),
        ("text", [("user", "text")]),
        (np.str_("text"), [("user", "text")]),
        (Message.of("system", "s"), [("system", "s")]),
        ([Message.of("system", "s"), "u"], [("system", "s"), ("user", "u")]),
        ({"question": "q", "answer": "a"}, [("user", "q")]),
        ({"prompts": ["p"]}, [("user", "p")]),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
            [("system", "s"), ("user", "u")],
        ),
        ({"tool_outputs": {"c1": "1", "c2": 2}}, [("tool", "1"), ("tool", "2")]),
    ],
)
def test_observations_become_messages(observation: Any, expected: list[Any]) -> None:
    assert [(message.role, message.text) for message in to_messages(observation)] == expected


@pytest.mark.parametrize("observation", [3, b"bytes", {"board": "x"}, [3], object()])
def test_another_observation_breaks_the_contract(observation: Any) -> None:
    with pytest.raises(EnvError, match="observation") as caught:
        to_messages(observation)
    assert caught.value.kind == "env_contract"
