"""One turn: a question, an answer, a reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from tunix_core.envs.base import BaseTaskEnv, MaybeAwaitable, graded, then
from tunix_core.types import StepResult, Task


class TaskEnvironment(BaseTaskEnv):
    """Shows the task and grades the one answer.

    Args:
        single_example: a `Task` or its payload; the payload's "question", "prompt" or "prompts" is shown
            (override `_initial_observation` for anything else).
        reward_fn: `(task=payload, action=answer) -> number`, or an object with `.reward` and `.metadata`;
            or override `_grade(answer)`. Either may be `async def`.
        **kwargs: kept in `extra_kwargs`.
    """

    def __init__(
        self,
        single_example: Task | Mapping[str, Any] | None = None,
        *,
        reward_fn: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(single_example, reward_fn=reward_fn, **{"max_steps": 1, **kwargs})

    def _initial_observation(self) -> MaybeAwaitable:
        return self.task

    def _step_impl(self, action: Any) -> MaybeAwaitable:
        return then(self._grade(action), lambda value: answered(action, value))

    @classmethod
    def from_dict(cls, env_args: Mapping[str, Any]) -> Self:
        """The environment whose task is `env_args` without "reward_fn" and "group_id"."""
        task = dict(env_args)
        reward_fn, group_id = task.pop("reward_fn", None), task.pop("group_id", None)
        return cls(task, reward_fn=reward_fn, group_id=group_id)


def answered(answer: Any, value: Any) -> StepResult:
    """The last step: `value` is what grading the answer gave."""
    reward, details = graded(value)
    return StepResult(None, reward, terminated=True, info={"response": answer, "metadata": details})
