"""Messages and tools in the form that a chat template takes, whatever that template can't take itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tunix_core.errors import ModelError
from tunix_core.models.jinja import ChatTemplate
from tunix_core.models.tool_styles import ToolStyle
from tunix_core.types import Message, ToolCall

Guard = Callable[[str], str]
Turn = dict[str, Any]

_PROBE = "probe"
_USER = {"role": "user", "content": _PROBE}
_SYSTEM = {"role": "system", "content": f"{_PROBE} system"}
_ASSISTANT = {"role": "assistant", "content": f"{_PROBE} assistant"}
_TOOL = {"role": "tool", "content": f"{_PROBE} tool", "name": _PROBE}


class Prompting:
    """Renders messages by a template; what it can't take is said in the ways it can.

    Found out by trying, once: whether the template takes a system message, tools, tool calls (several in
    one turn, with text), tool answers, and roles that don't alternate. Where it doesn't, the system text
    goes before the first user's, tools are told in the system text, calls are written in the assistant's
    text as the style writes them, tool answers are a user's, and neighbours of one role are one message.

    Args:
        template: the checkpoint's.
        style: how calls are written where the template doesn't write them.
        variables: more variables for the template.

    Attributes:
        takes: what was found out, by name.
    """

    def __init__(self, template: ChatTemplate, style: ToolStyle, variables: Mapping[str, Any]) -> None:
        self._template, self._style, self._variables = template, style, variables
        one, two = _calling("", 1), _calling("", 2)
        self.takes = {
            "tools": "tools" in template.names,
            "system": self._shows([_SYSTEM, _USER], "probe system"),
            "tool": any(self._shows([_USER, said, _TOOL], "probe tool") for said in (one, _ASSISTANT)),
            "any_order": self._shows([_USER, _USER], _PROBE) and self._shows([_USER, _ASSISTANT, _ASSISTANT], _PROBE),
            "calls": self._shows([_USER, one], "probe_0"),
            "several_calls": self._shows([_USER, two], "probe_0", "probe_1"),
            "text_and_calls": self._shows([_USER, _calling("probe text", 1)], "probe text", "probe_0"),
        }

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], guard: Guard, ready: bool = True
    ) -> str:
        """The conversation as text.

        Args:
            tools: schemas in the function-calling form.
            guard: what is done to every string that doesn't come from the template.
            ready: whether the assistant's turn is begun at the end.
        """
        turns = [self._turn(message) for message in messages]
        if tools and not self.takes["tools"]:
            turns = _told(turns, _listing(tools, self._style))
        if not self.takes["system"]:
            turns = _without_system(turns)
        if not self.takes["any_order"]:
            turns = list(_alternating(turns, ready))
        given = [{"type": "function", "function": dict(tool)} for tool in tools] if self.takes["tools"] else []
        return self._rendered([_guarded(turn, guard) for turn in turns], _guarded(given, guard) or None, ready)

    def _turn(self, message: Message) -> Turn:
        if message.role == "assistant":
            return self._assistant(message)
        if message.role == "tool" and not self.takes["tool"]:
            return {"role": "user", "content": f"```tool_output\n{message.text}\n```"}
        turn: Turn = {"role": message.role, "content": message.text}
        more = {"name": message.name, "tool_call_id": message.tool_call_id}
        return turn | {key: value for key, value in more.items() if value is not None}

    def _assistant(self, message: Message) -> Turn:
        calls = message.tool_calls
        if not calls:
            return {"role": "assistant", "content": message.text}
        if not self._takes_calls(message):
            written = self._style.write(calls)
            return {"role": "assistant", "content": f"{message.text}\n{written}" if message.text else written}
        return {"role": "assistant", "content": message.text, "tool_calls": [_call(call) for call in calls]}

    def _takes_calls(self, message: Message) -> bool:
        takes, calls = self.takes, message.tool_calls
        readable = all(isinstance(call.arguments, Mapping) for call in calls)
        several, text = len(calls) > 1, bool(message.text)
        return readable and takes["several_calls" if several else "calls"] and (takes["text_and_calls"] or not text)

    def _rendered(self, turns: Sequence[Turn], tools: Any, ready: bool) -> str:
        return self._template.render(
            **{"messages": turns, "tools": tools, "documents": None, **self._variables, "add_generation_prompt": ready}
        )

    def _shows(self, turns: Sequence[Turn], *texts: str) -> bool:
        try:
            rendered = self._rendered(turns, None, True)
        except ModelError:
            return False
        return all(text in rendered for text in texts)


def _call(call: ToolCall) -> Mapping[str, Any]:
    return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}


def _calling(text: str, count: int) -> Turn:
    calls = [_call(ToolCall(f"probe_{i}", {"x": 1}, f"call_{i}")) for i in range(count)]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def _listing(tools: Sequence[Mapping[str, Any]], style: ToolStyle) -> str:
    schemas = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
    return f"You can call these tools:\n{schemas}\n{style.told}"


def _told(turns: list[Turn], listing: str) -> list[Turn]:
    if turns and turns[0]["role"] == "system":
        return [turns[0] | {"content": f"{turns[0]['content']}\n\n{listing}".lstrip()}, *turns[1:]]
    return [{"role": "system", "content": listing}, *turns]


def _without_system(turns: list[Turn]) -> list[Turn]:
    return [turn | {"role": "user"} if turn["role"] == "system" else turn for turn in turns]


def _alternating(turns: Sequence[Turn], ready: bool) -> Iterator[Turn]:
    """User and assistant by turns, after a system message at most; a turn that lacks is an empty one."""
    turns = [turn | {"role": "user"} if i and turn["role"] == "system" else turn for i, turn in enumerate(turns)]
    last = "assistant"
    held: Turn | None = None
    for turn in turns:
        if held is not None and turn["role"] == held["role"] == "user":
            held = held | {"content": f"{held['content']}\n\n{turn['content']}"}
            continue
        if held is not None:
            yield held
        if turn["role"] == "assistant" and last != "user":
            yield {"role": "user", "content": ""}
        held, last = turn, turn["role"]
    if held is not None:
        yield held
    if ready and last != "user":
        yield {"role": "user", "content": ""}


def _guarded(value: Any, guard: Guard) -> Any:
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, Mapping):
        return {_guarded(key, guard): _guarded(item, guard) for key, item in value.items()}
    return [_guarded(item, guard) for item in value] if isinstance(value, list | tuple) else value
