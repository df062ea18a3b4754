"""Functions as tools."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tunix_core.errors import EnvError, SandboxError, ToolError, UsageError
from tunix_core.tools import (
    BaseTool,
    Tool,
    ToolOutput,
    abandoned_calls,
    as_tool,
    call_tool,
    call_tools,
    read_arguments,
    to_text,
    tool,
)
from tunix_core.types import ToolCall


class Point(BaseModel):
    x: int
    y: int = 0


@tool
def move(
    point: Point, by: Annotated[int, Field(description="steps", ge=0)] = 1, *, way: Literal["up", "down"] = "up"
) -> str:
    """Moves a point
    some steps.

    Further text is for people.
    """
    return f"{point.x},{point.y} {by} {way}"


def answer(given_tool: Any, arguments: Any, timeout_s: float = 5.0) -> str:
    return asyncio.run(call_tool(as_tool(given_tool), ToolCall("t", arguments), timeout_s))


def test_a_typed_function_becomes_a_schema() -> None:
    assert isinstance(move, Tool)
    assert (move.name, move.description) == ("move", "Moves a point some steps.")
    properties = move.schema["parameters"]["properties"]
    assert properties["by"] == {"default": 1, "description": "steps", "minimum": 0, "type": "integer"}
    assert properties["way"]["enum"] == ["up", "down"]
    assert move.parameters["required"] == ["point"]
    assert move.parameters["$defs"]["Point"]["required"] == ["x"]
    assert "title" not in str(move.schema)


def test_arguments_arrive_as_their_types() -> None:
    assert answer(move, {"point": {"x": "3"}}) == "3,0 1 up"
    assert answer(move, '{"point": {"x": 3, "y": 4}, "by": 2, "way": "down"}') == "3,4 2 down"
    assert move(Point(x=1), 2) == "1,0 2 up"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "point: Field required. Expected: point, by, way."),
        ({"point": {"x": "a"}}, "point.x: Input should be a valid integer"),
        ({"point": {"x": 1}, "by": -1}, "by: Input should be greater than or equal to 0"),
        ({"point": {"x": 1}, "to": 1}, "to: Extra inputs are not permitted"),
    ],
)
def test_invalid_arguments_are_named(arguments: Any, expected: str) -> None:
    text = answer(move, arguments)
    assert text.startswith("Error: invalid arguments: ") and expected in text


def test_name_and_description_may_be_given() -> None:
    @tool(name="plus", description="Sum.")
    def add(a, b=2):
        return a + b

    assert add.schema["name"] == "plus" and add.description == "Sum."
    assert answer(add, {"a": 1}) == "3"
    assert answer(add, {"a": [1], "b": [2]}) == "[1, 2]"


def test_an_argument_may_have_any_name() -> None:
    def odd(copy: int, schema: int, _hidden: int, model_dump: int) -> int:
        return copy + schema + _hidden + model_dump

    assert answer(odd, {"copy": 1, "schema": 2, "_hidden": 3, "model_dump": 4}) == "10"
    assert list(as_tool(odd).parameters["properties"]) == ["copy", "schema", "_hidden", "model_dump"]


def test_methods_partials_and_objects_are_functions_too() -> None:
    class Shop:
        stock = 3

        def left(self, less: int = 0) -> int:
            return self.stock - less

        def __call__(self, less: int) -> int:
            return self.left(less)

    assert answer(Shop().left, {"less": 1}) == "2"
    assert answer(Shop(), {"less": 1}) == "2"
    assert as_tool(Shop().left).name == "left"
    assert answer(as_tool(functools.partial(pow, 2), name="power"), {}).startswith("Error:")


def test_a_signature_that_cannot_be_a_schema_is_refused() -> None:
    def many(*numbers: int) -> None: ...
    def rest(**numbers: int) -> None: ...
    def unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def strange(a: object.__class__.__mro__.__class__.__call__.__class__) -> None: ...  # type: ignore[valid-type]

    for fn, why in ((many, r"\*numbers"), (rest, r"\*\*numbers"), (unknown, "Missing"), (strange, "JSON schema")):
        with pytest.raises(UsageError, match=why):
            tool(fn)
    with pytest.raises(UsageError, match="must be a function, a Tool or a tool class, not int"):
        as_tool(3)


def test_async_functions_are_awaited() -> None:
    async def later(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    def hidden(a: int) -> Any:
        return later(a)

    assert answer(later, {"a": 1}) == answer(hidden, {"a": 1}) == "2"
    tools = {"later": as_tool(later)}
    assert asyncio.run(_await(call_tools(tools, [ToolCall("later", {"a": 1})]))) == ["2"]
    assert call_tools({"hidden": as_tool(hidden)}, [ToolCall("hidden", {"a": 1})]) == ["2"]


async def _await(value: Any) -> Any:
    return await value


def test_blocking_tools_are_called_without_a_loop() -> None:
    assert call_tools({"move": move}, [ToolCall("move", {"point": {"x": 1}}), ToolCall("up")]) == [
        "1,0 1 up",
        "Error: there is no tool 'up'. Tools: move.",
    ]
    assert call_tools({}, []) == []


def test_a_blocking_tool_does_not_hold_up_the_loop() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()

        def ask_the_loop() -> str:
            return asyncio.run_coroutine_threadsafe(_await(asyncio.sleep(0, "free")), loop).result(10)

        return await call_tool(as_tool(ask_the_loop), ToolCall("ask_the_loop"))

    assert asyncio.run(main()) == "free"


@pytest.mark.parametrize("beside_async", [False, True])
def test_no_more_calls_hang_in_threads_than_may(beside_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is counted until it returns; what is async goes on meanwhile."""
    monkeypatch.setattr("tunix_core.tools.calling.MOST_ABANDONED", 2)
    release, ended = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        release.wait(60)
        ended.release()

    async def quick() -> str:
        return "here"

    tools = {"hang": as_tool(hang), "quick": as_tool(quick)}
    calls = [ToolCall("hang"), ToolCall("hang"), *[ToolCall("quick")] * beside_async]

    async def main() -> None:
        def call(*calls: ToolCall) -> Any:
            return call_tools(tools, calls, timeout_s=0.05)

        texts = await call(*calls) if beside_async else call(*calls)
        assert ["was given up" in text for text in texts] == [True, True, *[False] * beside_async]
        assert abandoned_calls() == 2
        with pytest.raises(EnvError, match=r'2 calls of tools hang .* isolation = "process"'):
            call(ToolCall("hang"))
        with pytest.raises(EnvError, match="2 calls of tools hang"):
            await call_tool(tools["hang"], ToolCall("hang"))
        assert await call(ToolCall("quick")) == ["here"]

    asyncio.run(main())
    release.set()
    for _ in range(2):
        assert ended.acquire(timeout=30)
    for thread in threading.enumerate():
        if thread.name == "tunix-call":
            thread.join(30)
    assert abandoned_calls() == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lost_sandbox_is_no_observation(is_async: bool) -> None:
    def lost() -> None:
        raise SandboxError("the container is gone")

    async def lost_async() -> None:
        lost()

    tools = {"look": as_tool(lost_async if is_async else lost, name="look")}
    with pytest.raises(SandboxError, match="is gone"):
        asyncio.run(_await(call_tools(tools, [ToolCall("look")])))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_would_end_the_program_is_an_observation(is_async: bool) -> None:
    class Panic(BaseException):
        """As PyO3 raises for a panic in Rust."""

    def panics() -> None:
        raise Panic("in Rust")

    async def panics_later() -> None:
        panics()

    assert "Panic: in Rust" in answer(panics_later if is_async else panics, {})


def test_a_tool_error_says_only_its_message() -> None:
    def refuse() -> None:
        raise ToolError("not today")

    def no_text() -> Any:
        return {1: Unprintable()}

    assert answer(refuse, {}) == "Error: not today"
    assert answer(no_text, {}).startswith("Error: ")


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (None, ""),
        (1.5, "1.5"),
        (True, "true"),
        ({"k": [1, "é"]}, '{"k": [1, "é"]}'),
        (Point(x=1), '{"x": 1, "y": 0}'),
        ({1}, "[1]"),
        (b"raw", '"raw"'),
    ],
)
def test_results_become_text(result: Any, text: str) -> None:
    assert to_text(result) == text


@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_arguments_are_the_same_as_a_mapping_and_as_json(arguments: dict[str, Any]) -> None:
    import json

    assert read_arguments(arguments) == read_arguments(json.dumps(arguments)) == arguments


@pytest.mark.parametrize("arguments", ["", "  ", None, {}, "{}"])
def test_no_arguments_are_an_empty_mapping(arguments: Any) -> None:
    assert read_arguments(arguments) == {}


@pytest.mark.parametrize("arguments", ["{", "3", "[]", "[" * 100_000])
def test_arguments_that_are_no_object_are_a_tool_error(arguments: str) -> None:
    with pytest.raises(ToolError):
        read_arguments(arguments)


def test_a_tool_class_is_built_with_its_name_and_docstring() -> None:
    class Upper(BaseTool):
        """Shouts."""

        def get_json_schema(self) -> dict[str, Any]:
            return {"name": self.name, "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}

        def apply(self, text: str) -> ToolOutput:
            return ToolOutput(self.name, output=text.upper())

    made = as_tool(Upper, name="up")
    assert (made.name, made.description) == ("up", "Shouts.")
    assert answer(made, {"text": "a"}) == "A"
    assert answer(Upper("x", "y"), {"text": "a"}) == "A"
    assert answer(made, {"other": "a"}).startswith("Error: TypeError")
