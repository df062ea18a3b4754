"""`math/arithmetic`: one question, one number."""

from __future__ import annotations

from typing import Any

from tunix_core import StepResult
from tunix_core.envs import TaskEnvironment
from tunix_core.rewards import GoldError, GraderTimeout, grade_in_worker_async
from tunix_env_math.answers import quick_verdict

CPU_S, WALL_S = 3.0, 40.0


class ArithmeticEnv(TaskEnvironment):
    r"""Shows the question and grades the answer: 1 when it equals the gold, else 0.

    The answer is the bare number, stands in \boxed{}, or after "####". What is not plainly a number is
    graded with Math-Verify in a worker process. All is `async`: an episode needs no thread of its own.

    Args:
        ask: what is said after the question.
    """

    def __init__(self, single_example: Any = None, *, ask: str = "", **kwargs: Any) -> None:
        super().__init__(single_example, **kwargs)
        self._ask = ask

    async def _initial_observation(self) -> Any:
        return f"{self.task['question']} {self._ask}" if self._ask else self.task

    async def _step_impl(self, action: Any) -> StepResult:
        gold, response = str(self.full_task.gold), str(action)
        quick = quick_verdict(gold, response)
        flags: list[str] = []
        try:
            verdict = await _grade(gold, response) if quick is None else "correct" if quick else "incorrect"
        except GraderTimeout:
            verdict, flags = "incorrect", ["grader_timeout"]
        reward = float(verdict == "correct")
        return StepResult(None, reward, terminated=True, info={"verdict": verdict, "flags": flags})


async def _grade(gold: str, response: str) -> str:
    verdict = await grade_in_worker_async("tunix_env_math.grading:grade", gold, response, cpu_s=CPU_S, wall_s=WALL_S)
    if verdict == "bad_gold":
        raise GoldError(f"the gold {gold!r:.100} can't be read as mathematics; correct it in the data")
    return verdict
