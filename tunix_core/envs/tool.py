"""Many turns with tools, until the policy calls `finish`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tunix_core.contracts import Sandbox
from tunix_core.envs.base import BaseTaskEnv, MaybeAwaitable, then
from tunix_core.envs.task import answered
from tunix_core.errors import ToolError
from tunix_core.tools import Tool, as_tool, call_tools, read_arguments, to_text, try_tool
from tunix_core.types import Message, StepResult, Task, ToolCall


def _refuse(arguments: Mapping[str, Any]) -> dict[str, Any]:
    raise ToolError(f"finish needs its argument 'answer'; given were {sorted(map(str, arguments)) or 'none'}")


FINISH = Tool(
    name="finish",
    description="Gives the final answer and ends the episode.",
    parameters={"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    fn=str,
    check=_refuse,  # only a `finish` without an answer is ever called as a tool; a good one ends the episode
)


class ToolEnvironment(BaseTaskEnv):
    """Shows the task, answers tool calls, and grades the answer given with `finish` or as plain text.

    The calls of one turn run at the same time. A call that cannot be read, an unknown tool, invalid
    arguments, a tool that raises or runs out of time are tool messages that say so; the episode goes
    on. A turn without a call, or with a readable `finish`, ends it (other calls of that turn are not
    made), and the answer goes to `_grade`. So does what a tool that is `final` gives, when it succeeds.
    A tool of a sandbox is added in `_initial_observation`, with `add_tools`.

    Args:
        task: a `Task` or its payload; the payload's "question", "prompt" or "prompts" is shown.
        tools: typed functions, Tools, or tool classes; `finish` is built in, unless a subclass takes it out.
        tool_map: tool classes or functions by the name to call them.
        reward_fn: see BaseTaskEnv.
        max_steps: turns.
        tool_timeout_s: seconds each call may take.
        **kwargs: kept in `extra_kwargs`.
    """

    def __init__(
        self,
        task: Task | Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Any] = (),
        tool_map: Mapping[str, Any] | None = None,
        reward_fn: Callable[..., Any] | None = None,
        max_steps: int = 10,
        tool_timeout_s: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(task, reward_fn=reward_fn, max_steps=max_steps, **kwargs)
        given = [as_tool(each) for each in tools]
        given += [as_tool(each, name=name) for name, each in (tool_map or {}).items()]
        self.tools: dict[str, Tool] = {each.name: each for each in (*given, FINISH)}
        self.tool_timeout_s = tool_timeout_s

    def add_tools(self, sandbox: Sandbox | None, *tools: Any) -> None:
        """Adds tools for this episode.

        Args:
            sandbox: where tools of a sandbox work.
            tools: ids of the hub ("tools/bash"), or whatever `tools.as_tool` takes.
        """
        for given in tools:
            found = as_tool(self.find_tool(given) if isinstance(given, str) else given, sandbox=sandbox)
            self.tools[found.name] = found

    @property
    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return tuple(each.schema for each in self.tools.values())

    def decode(self, message: Message) -> Any:
        """The turn's calls as `{"id", "function": {"name", "arguments": JSON text}}`, with "error" where one
        could not be read; the text of a turn without calls."""
        return [as_function_call(call) for call in message.tool_calls] or message.text

    def _initial_observation(self) -> MaybeAwaitable:
        return self.task

    def _step_impl(self, action: Any) -> MaybeAwaitable:
        if isinstance(action, str):
            return then(self._grade(action), lambda value: answered(action, value))
        calls = as_tool_calls(action)
        for call in calls:
            if FINISH.name in self.tools and (answer := final_answer(call)) is not None:
                return then(self._grade(answer), lambda value, answer=answer: answered(answer, value))
            if (final := self.tools.get(call.name)) is not None and final.final:
                return self._end_with(final, call)
        return then(call_tools(self.tools, calls, self.tool_timeout_s), lambda texts: _observed(calls, texts))

    async def _end_with(self, final: Tool, call: ToolCall) -> StepResult:
        succeeded, text = await try_tool(final, call, self.tool_timeout_s)
        if not succeeded:
            return _observed([call], [text])
        value = self._grade(text)
        return answered(text, await value if inspect.isawaitable(value) else value)

    @classmethod
    def from_dict(cls, env_args: Mapping[str, Any]) -> Self:
        """The environment whose task is `env_args` without the arguments of the constructor in it."""
        task = dict(env_args)
        names = ("tools", "tool_map", "reward_fn", "max_steps", "tool_timeout_s")
        return cls(**{name: task.pop(name) for name in names if name in task}, task=task)


def as_function_call(call: ToolCall) -> dict[str, Any]:
    """A call in the function-calling form; see `ToolEnvironment.decode`."""
    arguments, error = call.arguments, call.error
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps(dict(arguments), default=str)
        except (TypeError, ValueError, RecursionError) as caught:
            arguments, error = repr(arguments)[:1000], error or f"the arguments are not JSON: {caught}"
    form: dict[str, Any] = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
    return {**form, "error": error} if error else form


def as_tool_calls(action: Any) -> list[ToolCall]:
    """Calls from None, one call or several, each a ToolCall or in the function-calling form."""
    several = action if isinstance(action, list | tuple) else [] if action is None else [action]
    return [_as_tool_call(each) for each in several]


def _as_tool_call(given: Any) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        return ToolCall(name="", error=f"a call must be {{'function': {{'name', 'arguments'}}}}, not {given!r:.200}")
    name, arguments = str(function.get("name", "")), function.get("arguments")
    arguments = arguments if isinstance(arguments, Mapping | str) else "" if arguments is None else repr(arguments)
    return ToolCall(name, arguments, str(given.get("id") or ""), given.get("error"))


def final_answer(call: ToolCall) -> str | None:
    """The answer of a readable `finish` call: its "answer", "response" or only argument; else None."""
    if call.name != FINISH.name or call.error:
        return None
    try:
        arguments = read_arguments(call.arguments)
        given = [arguments[name] for name in ("answer", "response") if name in arguments] or list(arguments.values())
        return to_text(given[0]) if len(given) == 1 or "answer" in arguments else None
    except Exception:  # noqa: BLE001 - what the policy wrote must not end the episode; the observation says what is wrong
        return None


def _observed(calls: Sequence[ToolCall], texts: Sequence[str]) -> StepResult:
    messages = tuple(
        Message.of("tool", text, tool_call_id=call.id or None, name=call.name or None)
        for call, text in zip(calls, texts, strict=True)
    )
    return StepResult(messages or "No tool was called.")
