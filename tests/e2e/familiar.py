"""Environments in the manner of the well-known classes of these names: only the imports are ours."""

from __future__ import annotations

import dataclasses
from typing import Any

from tunix_core.envs import BaseTaskEnv, EnvStepResult, TaskEnvironment, ToolEnvironment
from tunix_core.tools import BaseTool, ToolOutput


@dataclasses.dataclass
class RewardOutput:
    reward: float
    metadata: dict[str, Any]


def exact_reward(task: dict[str, Any], action: str) -> RewardOutput:
    right = str(action).strip() == str(task["answer"])
    return RewardOutput(reward=1.0 if right else 0.0, metadata={"is_correct": right})


class CountdownEnv(BaseTaskEnv):
    """Many turns: letters said are taken off a number."""

    def __init__(
        self, task: dict[str, Any] | None = None, *, reward_fn=None, max_steps: int = 3, bonus: float = 0.0, **kwargs
    ):
        super().__init__(task=task, reward_fn=reward_fn, max_steps=max_steps, **kwargs)
        self.bonus = bonus

    def _initial_observation(self) -> dict[str, Any]:
        self.left = self.task["start"]
        return {"question": f"{self.left} letters to go."}

    def _step_impl(self, action: Any) -> EnvStepResult:
        self.left -= len(str(action))
        done = self.left <= 0
        return EnvStepResult(
            observation={"observation": f"step {self.step_count}: {self.left} left"},
            reward=1.0 + self.bonus if self.left == 0 else 0.0,
            done=done,
            info={"left": self.left, "color": self.extra_kwargs.get("color")},
        )


class OldCountdownEnv(CountdownEnv):
    """A `reset` of its own that takes no seed, and a step that gives a 4-tuple."""

    def reset(self):
        observation, info = super().reset()
        return observation, {**info, "began": self.step_count}

    def _step_impl(self, action: Any):
        result = super()._step_impl(action)
        return result.observation, result.reward, result.done, result.info


class QuizEnv(TaskEnvironment):
    """One turn, graded by a reward function."""

    def __init__(self, single_example: dict[str, Any], *, reward_fn=exact_reward, **kwargs):
        super().__init__(single_example, reward_fn=reward_fn or exact_reward, **kwargs)


class FieldsEnv(BaseTaskEnv):
    """Its constructor takes the task's fields; it is made by `from_dict`."""

    def __init__(self, question: str = "", answer: str = "", **kwargs):
        super().__init__(task={"question": question, "answer": answer}, reward_fn=exact_reward, max_steps=1, **kwargs)

    def _initial_observation(self) -> str:
        return self.task["question"]

    def _step_impl(self, action: Any) -> EnvStepResult:
        output = self.reward_fn(task=self.task, action=action)
        return EnvStepResult(observation={}, reward=output.reward, done=True, info=output.metadata)


class Multiply(BaseTool):
    """Multiplies two numbers."""

    @property
    def json(self) -> dict[str, Any]:
        numbers = {name: {"type": "number"} for name in ("a", "b")}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {"type": "object", "properties": numbers, "required": ["a", "b"]},
            },
        }

    def apply(self, a: float, b: float) -> ToolOutput:
        if b == 0:
            return ToolOutput(name=self.name, error="zero is dull")
        return ToolOutput(name=self.name, output=a * b)


class MathToolEnv(ToolEnvironment):
    def __init__(self, task: dict[str, Any] | None = None, *, max_steps: int = 4, **kwargs):
        tool_map = {"multiply": Multiply}
        super().__init__(task=task, tool_map=tool_map, reward_fn=exact_reward, max_steps=max_steps, **kwargs)
