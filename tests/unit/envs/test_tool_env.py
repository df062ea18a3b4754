"""ToolEnvironment: whatever the policy writes is an observation or the end."""

from __future__ import annotations

import asyncio
import inspect
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.envs import ToolEnvironment
from tunix_core.envs.drive import advance, begin
from tunix_core.tools import BaseTool, ToolOutput
from tunix_core.types import Message, StepResult, ToolCall


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


def fail(how: str = "") -> None:
    raise ValueError(f"cannot {how}")


def leave() -> None:
    raise SystemExit(1)


async def later(text: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"text": text}


def make(tools: Any = (add, fail, leave, later), **options: Any) -> ToolEnvironment:
    return ToolEnvironment(
        {"question": "q"}, tools=list(tools), reward_fn=lambda task, action: float(action == "42"), **options
    )


def step(env: ToolEnvironment, *calls: ToolCall, text: str = "") -> StepResult:
    async def wait() -> StepResult:
        value = advance(env, Message.of("assistant", text, tool_calls=calls))
        return await value if inspect.isawaitable(value) else value

    return asyncio.run(wait())


def said(result: StepResult) -> list[str]:
    assert all(message.role == "tool" for message in result.observation)
    return [message.text for message in result.observation]


def test_the_opening_offers_the_tools_and_finish() -> None:
    opening = begin(make(), 1)
    assert [schema["name"] for schema in opening.tools] == ["add", "fail", "leave", "later", "finish"]
    assert opening.messages == (Message.of("user", "q"),)


def test_calls_are_answered_in_order_with_their_ids() -> None:
    calls = [
        ToolCall("later", {"text": "x"}, "c1"),
        ToolCall("add", '{"a": 1, "b": 2}', "c2"),
        ToolCall("add", {"a": "4"}, "c3"),
    ]
    result = step(make(), *calls)
    assert said(result) == ['{"text": "x"}', "3", "5"]
    assert [(m.tool_call_id, m.name) for m in result.observation] == [("c1", "later"), ("c2", "add"), ("c3", "add")]
    assert (result.reward, result.done) == (0.0, False)


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_the_calls_of_a_turn_run_at_the_same_time(kind: str) -> None:
    barrier, async_barrier = threading.Barrier(3, timeout=10), asyncio.Barrier(3)

    def meet() -> str:
        barrier.wait()
        return "met"

    async def meet_async() -> str:
        await async_barrier.wait()
        return "met"

    tool = meet if kind == "blocking" else meet_async
    assert said(step(make([tool]), *[ToolCall(tool.__name__)] * 3)) == ["met"] * 3


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (ToolCall("ad", {}), "there is no tool 'ad'. Did you mean 'add'? Tools: add, fail, leave, later, finish."),
        (ToolCall("", "{'a'", error="no closing brace"), "could not be read: no closing brace"),
        (ToolCall("add", "{"), "the arguments are not JSON"),
        (ToolCall("add", "[1]"), "must be a JSON object, not list"),
        (ToolCall("add", {"a": "x"}), "invalid arguments: a: "),
        (ToolCall("add", {"a": 1, "c": 1}), "invalid arguments: c: "),
        (ToolCall("add", {}), "Expected: a, b."),
        (ToolCall("fail", {"how": "so"}), "ValueError: cannot so"),
        (ToolCall("leave", {}), "SystemExit"),
        (ToolCall("later", {"text": 1}), "invalid arguments: text: "),
        (ToolCall("finish", {}), "finish needs its argument 'answer'"),
        (ToolCall("finish", {"a": 1, "b": 2}), "finish needs its argument 'answer'; given were ['a', 'b']"),
        (ToolCall("finish", "[]"), "must be a JSON object"),
        (ToolCall("finish", "", error="cut off"), "cut off"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(call: ToolCall, expected: str) -> None:
    (text,) = said(step(make(), call))
    assert text.startswith("Error: ") and expected in text


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_tool_that_hangs_is_given_up(kind: str) -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(60)

    async def hang_async() -> None:
        await asyncio.Event().wait()

    tool = hang if kind == "blocking" else hang_async
    env = make([tool, add], tool_timeout_s=0.05)
    texts = said(step(env, ToolCall(tool.__name__), ToolCall("add", {"a": 1})))
    release.set()
    assert texts == ["Error: the tool took longer than 0.05 s and was given up", "2"]


def test_a_tools_own_timeout_error_is_the_tools() -> None:
    async def fetch() -> None:
        raise TimeoutError("the server")

    assert said(step(make([fetch]), ToolCall("fetch"))) == ["Error: TimeoutError: the server"]


@pytest.mark.parametrize(
    "arguments", [{"answer": "42"}, '{"answer": "42"}', {"answer": 42}, {"response": "42"}, {"x": "42"}]
)
def test_finish_ends_the_episode_and_is_graded(arguments: Any) -> None:
    result = step(make(), ToolCall("add", {}), ToolCall("finish", arguments))
    assert (result.reward, result.terminated, result.observation) == (1.0, True, ())
    assert result.info["response"] == "42"


def test_plain_text_is_the_final_answer() -> None:
    assert step(make(), text="42").reward == 1.0
    result = step(make(), text="43")
    assert (result.reward, result.terminated) == (0.0, True)


def test_text_beside_a_call_is_no_answer() -> None:
    assert not step(make(), ToolCall("add", {"a": 1}), text="42").done


def test_running_out_of_turns_truncates() -> None:
    result = step(make(max_steps=1), ToolCall("add", {"a": 1}))
    assert result.truncated and not result.terminated and result.info["truncated_by"] == "max_steps"


def test_the_grade_may_be_async_and_overridden() -> None:
    class Graded(ToolEnvironment):
        async def _grade(self, answer: str) -> float:
            return len(answer)

    assert step(Graded({}, tools=[add]), text="four").reward == 4.0


class Calculator(BaseTool):
    """Works out a sum."""

    @property
    def json(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def apply(self, **kwargs: Any) -> ToolOutput:
        if kwargs["a"] < 0:
            return ToolOutput(name=self.name, error="negative")
        return ToolOutput(name=self.name, output=[kwargs["a"] + 1])


class Familiar(ToolEnvironment):
    """In the manner of code written for the well-known class: a tool map, calls as dicts, `done`."""

    def _step_impl(self, action: Any) -> Any:
        if isinstance(action, list) and action[0]["function"]["name"] == "give_up":
            return {"tool_outputs": {}}, -1.0, True, {"gave_up": True}
        return super()._step_impl(action)


def familiar(**options: Any) -> Familiar:
    def reward_fn(task: Any, action: Any) -> Any:
        return SimpleNamespace(reward=float(action == task["answer"]), metadata={"seen": action})

    return Familiar(
        task={"question": "q", "answer": "5"},
        tool_map={"calc": Calculator},
        reward_fn=reward_fn,
        max_steps=4,
        **options,
    )


def test_an_environment_in_the_familiar_manner_runs() -> None:
    env = familiar()
    observation, _ = env.reset()
    assert observation == {"question": "q", "answer": "5"}
    result = env.step([{"id": "c1", "function": {"name": "calc", "arguments": '{"a": 4}'}}])
    assert said(result) == ["[5]"] and not result.done
    assert said(env.step({"function": {"name": "calc", "arguments": '{"a": -4}'}})) == ["Error: negative"]
    result = env.step([{"function": {"name": "finish", "arguments": {"response": "5"}}}])
    assert (result.reward, result.done, result.info["metadata"]) == (1.0, True, {"seen": "5"})
    assert familiar().step("5").reward == 1.0
    assert not familiar().step(None).done


def test_the_familiar_manner_meets_messages_of_the_loop() -> None:
    result = step(familiar(), ToolCall("give_up"))
    assert (result.reward, result.terminated, result.observation) == (-1.0, True, ())
    assert said(step(familiar(), ToolCall("calc", {"a": 1}), ToolCall("calc", {}))) == ["[2]", "Error: KeyError: 'a'"]
    env = Familiar.from_dict({"question": "q", "tool_map": {"calc": Calculator}, "max_steps": 3})
    assert (env.task, env.max_steps, list(env.tools)) == ({"question": "q"}, 3, ["calc", "finish"])
    assert env.tools["calc"].description == "Works out a sum."


def test_a_class_based_tool_may_be_async() -> None:
    class Only(BaseTool):
        json = Calculator.json

        async def apply_async(self, **kwargs: Any) -> ToolOutput:
            await asyncio.sleep(0)
            return ToolOutput(output=kwargs["a"])

    env = ToolEnvironment({}, tool_map={"calc": Only})
    assert said(step(env, ToolCall("calc", {"a": 7}))) == ["7"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["add", "fail", "leave", "later", "finish", ""]) | st.text(max_size=20)
ARGUMENTS = (
    st.text()
    | st.sampled_from(
        ["{", "null", "[" * 100_000, '{"a":' * 5000, '{"answer": "' + "x" * 200_000, '{"a": 1, "b": 1e999}']
    )
    | st.dictionaries(st.sampled_from(["a", "b", "answer", "text", "response"]) | st.text(), JSON, max_size=3)
)
CALLS = st.builds(ToolCall, NAMES, ARGUMENTS, st.text(max_size=5), st.none() | st.text(max_size=10))
ODD_CALLS = st.lists(CALLS | JSON | st.fixed_dictionaries({"function": JSON}), max_size=3)
TEXTS = st.text() | st.just("x" * 200_000)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, calls=st.lists(CALLS, max_size=4))
def test_whatever_the_policy_writes_is_an_observation_or_the_end(text: str, calls: list[ToolCall]) -> None:
    result = step(make(), *calls, text=text)
    assert result.terminated or len(said(result)) == len(calls) > 0


@settings(max_examples=40, deadline=None)
@given(action=ODD_CALLS)
def test_whatever_else_is_passed_as_an_action_is_no_exception(action: Any) -> None:
    async def wait() -> StepResult:
        value = make().step(action)
        return await value if inspect.isawaitable(value) else value

    result = asyncio.run(wait())
    assert result.terminated or result.observation
