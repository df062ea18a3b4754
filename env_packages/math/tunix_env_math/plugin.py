"""What this package registers."""

from __future__ import annotations

from typing import Any

from tunix_core import EnvSpec, Option, RewardSpec, Timeouts, ToolSpec, hookimpl

LENGTH = Option(0, "how many tasks; 0: endless")
# A worker may compute up to its limit twice and wait for its turn, before the step is given up.
TIMEOUTS = Timeouts(step_s=180.0)


@hookimpl
def tunix_register_envs(register: Any) -> None:
    register(
        EnvSpec(
            id="math/arithmetic",
            target="tunix_env_math.arithmetic:ArithmeticEnv",
            tasks="tunix_env_math.tasks:make_arithmetic",
            summary="Generated arithmetic and word problems of five levels; the answer is a number",
            options={
                "levels": Option((1, 2, 3), "which levels of difficulty, of 1 to 5"),
                "word_share": Option(0.25, "share of word problems, 0 to 1"),
                "operations": Option(
                    {}, 'instead of levels: {"+" = [0, 99], "*" = [0, 12]}, each as frequent as the others'
                ),
                "ask": Option("", "what is said after the question"),
                "length": LENGTH,
                "path": Option("", 'problems of your own instead: JSONL lines {"question": …, "answer": …}'),
            },
            chance_score=0.02,
            timeouts=TIMEOUTS,
        )
    )
    register(
        EnvSpec(
            id="math/calculator",
            target="tunix_env_math.calculator:CalculatorEnv",
            tasks="tunix_env_math.tasks:make_calculator",
            summary="Call a calculator, then give its result with finish",
            options={
                "require_call": Option(True, "an answer without a calculator call scores 0"),
                "length": LENGTH,
            },
            chance_score=0.0,
            max_turns=4,
        )
    )


@hookimpl
def tunix_register_tools(register: Any) -> None:
    register(ToolSpec("math/calculator", "tunix_env_math.calculator:calculator", "Exact arithmetic on an expression"))


@hookimpl
def tunix_register_rewards(register: Any) -> None:
    register(
        RewardSpec("math/verify", "tunix_env_math.grading:verify", "1 if the answer equals the task's gold, else 0")
    )
