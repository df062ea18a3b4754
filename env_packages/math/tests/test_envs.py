from __future__ import annotations

import asyncio
import inspect
import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunix_env_math import arithmetic
from tunix_env_math.arithmetic import ArithmeticEnv
from tunix_env_math.calculator import CalculatorEnv, calculator

from tunix_core.rewards import GoldError, close_shared_workers
from tunix_core.types import Message, StepResult, Task, ToolCall


async def play(env: Any, *actions: Message) -> list[StepResult]:
    results: list[StepResult] = []
    for value in [env.reset(seed=0)]:
        await value if inspect.isawaitable(value) else value
    for action in actions:
        result = env.step(action)
        results.append(await result if inspect.isawaitable(result) else result)
    closed = env.close()
    if inspect.isawaitable(closed):
        await closed
    return results


def say(text: str) -> Message:
    return Message.of("assistant", text)


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", tool_calls=(ToolCall(name, json.dumps(arguments), "1"),))


# ---- arithmetic ----------------------------------------------------------------------------------------
def answer(text: str, gold: str = "68") -> StepResult:
    task = Task("t", {"question": "What is 23 + 45?"}, gold=gold)
    return asyncio.run(play(ArithmeticEnv(task), say(text)))[0]


def test_it_shows_the_question() -> None:
    env = ArithmeticEnv(Task("t", {"question": "What is 23 + 45?"}, gold="68"))
    observation, _ = asyncio.run(env.reset(seed=0))
    assert observation["question"] == "What is 23 + 45?"


def test_it_says_what_it_is_to_say_after_the_question() -> None:
    env = ArithmeticEnv(Task("t", {"question": "What is 23 + 45?"}, gold="68"), ask="The number alone.")
    observation, _ = asyncio.run(env.reset(seed=0))
    assert observation == "What is 23 + 45? The number alone."


@pytest.mark.parametrize(
    ("text", "reward"), [("68", 1.0), (r"\boxed{68}", 1.0), ("67", 0.0), ("23 + 45", 0.0), ("", 0.0)]
)
def test_plain_answers_are_graded_without_a_worker(text: str, reward: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "_grade", None)  # calling it would raise
    result = answer(text)
    assert (result.reward, result.terminated, result.info["flags"]) == (reward, True, [])


def test_other_answers_are_graded_in_a_worker() -> None:
    assert answer("The answer is 68.").reward == 1.0
    assert answer(r"\boxed{\frac{136}{2}}").reward == 1.0
    assert answer(r"\boxed{\frac{136}{3}}").reward == 0.0
    with pytest.raises(GoldError, match="can't be read"):
        answer("68", gold="")
    close_shared_workers()


def test_an_answer_that_computes_for_ever_scores_0_and_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "CPU_S", 0.2)
    result = answer(r"\boxed{\frac{9^{9^{9^{9}}}}{2}}", gold=r"\frac{1}{2}")
    assert (result.reward, result.info["flags"]) == (0.0, ["grader_timeout"])
    close_shared_workers()


# ---- calculator ----------------------------------------------------------------------------------------
TASK = Task("t", {"question": "Use the calculator: 37 * 84"}, gold="3108")
USE = call("calculator", expression="37 * 84")


def play_calculator(*actions: Message, **options: Any) -> list[StepResult]:
    return asyncio.run(play(CalculatorEnv(TASK, **options), *actions))


def test_calling_the_calculator_and_finishing_with_its_result_scores_1() -> None:
    first, last = play_calculator(USE, call("finish", answer="3108"))
    assert first.observation[0].text == "3108" and not first.done and first.reward == 0
    assert (last.reward, last.terminated) == (1.0, True)


@pytest.mark.parametrize(
    "actions",
    [
        (call("finish", answer="3108"),),
        (USE, call("finish", answer="3109")),
        (USE, say("3108")),
        (call("calculator", expression="37 *"), call("finish", answer="3108")),
        (USE, call("finish", answer="37 * 84")),
    ],
    ids=["not called", "wrong", "no finish", "failed call", "not computed"],
)
def test_anything_else_scores_0(actions: tuple[Message, ...]) -> None:
    last = play_calculator(*actions)[-1]
    assert (last.reward, last.terminated) == (0.0, True)


def test_an_answer_may_be_a_number_or_marked() -> None:
    assert play_calculator(USE, call("finish", answer=3108))[-1].reward == 1.0
    assert play_calculator(USE, call("finish", answer=r"\boxed{3,108}"))[-1].reward == 1.0


def test_the_call_may_be_made_optional() -> None:
    assert play_calculator(call("finish", answer="3108"), require_call=False)[-1].reward == 1.0


def test_a_bad_expression_is_an_observation_and_four_turns_are_the_end() -> None:
    results = play_calculator(*[call("calculator", expression="import os")] * 4)
    assert "numbers" in results[0].observation[0].text
    assert [r.done for r in results] == [False, False, False, True]
    assert results[-1].truncated and results[-1].info["truncated_by"] == "max_steps"


def test_the_prompts_tools_are_the_calculator_and_finish() -> None:
    schemas = {s["name"]: s for s in CalculatorEnv(TASK).tool_schemas}
    assert set(schemas) == {"calculator", "finish"}
    assert set(schemas["calculator"]["parameters"]["properties"]) == {"expression"}


@given(st.integers(-999, 999), st.sampled_from("+-*"), st.integers(0, 999))
def test_the_calculator_is_exact(a: int, op: str, b: int) -> None:
    assert calculator(f"{a} {op} {b}") == str(eval(f"{a} {op} {b}"))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37 × 84 =", "3108"), ("2 ** 10", "1024"), ("2^10", "1024"), ("(1 + 2) * 3", "9"), ("-(3 - 5)", "2"),
        ("7 / 2", "3.5"), ("6 / 3", "2"), ("8 ÷ 2", "4"),
        ("0.1 + 0.2", "0.3"), ("1 / 3", "0.3333333333"), ("2 ** -1", "0.5"),
    ],
)  # fmt: skip
def test_what_the_calculator_knows(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "x",
        "1 +",
        "9 ** 9 ** 9",
        "2 ** 0.5",
        "1 / 0",
        "0 ** -1",
        "(" * 150,
        "1" * 201,
        "9" * 150,
        "5 // 2",
        "f(1)",
        "1, 2",
        "()",
        "(1)(2)",
    ],
)
def test_what_it_refuses_is_an_error_with_a_reason(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        calculator(expression)


@given(st.text(alphabet="0123456789+-*/(). ", max_size=40))
def test_whatever_is_asked_is_a_short_value_or_a_value_error(expression: str) -> None:
    try:
        assert Fraction(calculator(expression)) is not None
    except ValueError as error:
        assert str(error)
