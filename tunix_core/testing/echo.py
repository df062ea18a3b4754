"""An environment for tests: the policy is to say what it was shown."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tunix_core.envs import BaseTaskEnv
from tunix_core.specs import EnvSpec, Option
from tunix_core.types import StepResult, Task


class EchoEnv(BaseTaskEnv):
    """Shows the task's "text"; each of `turns` steps whose action repeats it brings 1 / turns. `async`.

    Args:
        task: its payload has "text".
        turns: steps until it ends.
        latency_s: seconds each step takes.
        fail_at: the step, from 1, that raises RuntimeError; 0 is `reset`; None is none.
        hang_at: the step, from 1, that takes `hang_s`; 0 is `reset`; None is none.
        hang_s: seconds.
    """

    def __init__(
        self,
        task: Any = None,
        *,
        turns: int = 1,
        latency_s: float = 0.0,
        fail_at: int | None = None,
        hang_at: int | None = None,
        hang_s: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(task, **kwargs)
        self.turns, self.latency_s = turns, latency_s
        self.fail_at, self.hang_at, self.hang_s = fail_at, hang_at, hang_s

    async def _initial_observation(self) -> str:
        await asyncio.sleep(self._due())
        return self._shown()

    async def _step_impl(self, action: str) -> StepResult:
        await asyncio.sleep(self._due())
        return self._echoed(action)

    def _due(self) -> float:
        """Seconds this call takes. Raises RuntimeError where it is to fail."""
        if self.step_count == self.fail_at:
            raise RuntimeError(f"fails at step {self.step_count}, as asked")
        return self.hang_s if self.step_count == self.hang_at else self.latency_s

    def _shown(self) -> str:
        return str(self.task["text"])

    def _echoed(self, action: str) -> StepResult:
        reward = float(action.strip() == self._shown()) / self.turns
        return StepResult(action, reward, terminated=self.step_count >= self.turns, info={"step": self.step_count})


class BlockingEchoEnv(EchoEnv):
    """EchoEnv with `def` methods, which block."""

    def _initial_observation(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        time.sleep(self._due())
        return self._shown()

    def _step_impl(self, action: str) -> StepResult:  # pyright: ignore[reportIncompatibleMethodOverride]
        time.sleep(self._due())
        return self._echoed(action)


class EchoTasks:
    """Endlessly many words to repeat; see `make_tasks`."""

    def __init__(self, split: str, seed: int, length: int) -> None:
        self._split, self._seed, self._length = split, seed, length

    def get(self, index: int) -> Task:
        text = f"{self._split} {self._seed} {index}"
        return Task(id=text.replace(" ", "-"), payload={"text": text}, split=self._split, gold=text)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._length


def make_tasks(split: str, seed: int, *, length: int = 1000) -> EchoTasks:
    """`length` tasks; `get(i)` is a function of split, seed and i alone."""
    return EchoTasks(split, seed, length)


ECHO = EnvSpec(
    id="testing/echo",
    target="tunix_core.testing.echo:EchoEnv",
    tasks="tunix_core.testing.echo:make_tasks",
    summary="Say what you were shown.",
    options={
        "turns": Option(1, "steps of an episode"),
        "latency_s": Option(0.0, "seconds a step takes"),
        "fail_at": Option(None, "the step that raises; 0 is reset"),
        "hang_at": Option(None, "the step that hangs; 0 is reset"),
        "length": Option(1000, "number of tasks"),
    },
    chance_score=0.0,
    max_turns=8,
)
