"""Which messages a chat template has to be shown again when a conversation grows.

Templates look at the opening, at neighbours, and, to drop the reasoning of earlier turns, at where the last
question stands. What lies between may be left out without a change to what they write after it. Not every
template is like that: `looks_no_further` tries it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

from tunix_core.contracts import Past
from tunix_core.errors import ModelError
from tunix_core.types import Message, ToolCall

Tools = Sequence[Mapping[str, Any]]
Render = Callable[[Sequence[Message], Tools, bool], str]
Messages = tuple[Message, ...]
Following = tuple[str | None, ...]
Used = tuple[int, Following, Following]
TALKS, TURNS = 16, 8

_WRAPPED = "<tool_response>"  # a user's message that begins so is a tool's answer to some templates
_CALLS = tuple(ToolCall(name, {"x": 1}, f"call_{i}") for i, name in enumerate(("look", "go")))
_SAID = tuple(
    (Message.of("assistant", thought + text, tool_calls=calls),)
    for thought in ("", "<think>\nhm\n</think>\n\n", "<think>\n\n</think>\n\n")
    for text, calls in (("yes", ()), ("", ()), ("", _CALLS[:1]), ("so", _CALLS[:1]), ("", _CALLS))
)
_TOOLS = ({"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},)
_USER, _TOOL, _SYSTEM = Message.of("user", "and?"), Message.of("tool", "dark"), Message.of("system", "brief")
_ANSWER = Message.of("user", f"{_WRAPPED}\ndark\n</tool_response>")
_HEARD = ((_USER,), (_TOOL,), (_TOOL, _TOOL), (_TOOL,), (_ANSWER,), (_USER, _USER), (_TOOL, _USER), (), (_SYSTEM,))


def in_view(past: Past, messages: Sequence[Message]) -> Past:
    """`past` without the middle that `messages` can't make a template write otherwise; marks are counted anew.

    The first message of user or assistant stays, with the system's before it, and so do the last two turns. When
    `messages` ask something, everything since the last question stays too, with the turn before it: reasoning
    since then may be dropped. So much is shown as was said since, once; with answers of tools alone, two turns.
    """
    said, now = past.messages, past.marks[-1][0]
    opening = next((i for i, message in enumerate(said) if message.role != "system"), 0) + 1
    asks = any(message.role == "user" for message in messages)
    turn = _last(said, now, _speaks)
    start = min(turn, _last(said, _last(said, now, _asks), _speaks)) - 1 if asks else turn - 1
    kept = list(range(opening))
    if not any(map(_asks, said[:opening])):
        kept += range(max(opening, _last(said, start, _asks)), start)[:1]
    if start <= len(kept):
        return past
    marks = [(before - start + len(kept), ids) for before, ids in past.marks if before > start]
    return Past([*(said[i] for i in kept), *said[start:]], past.tools, marks)


def looks_no_further(render: Render) -> bool:
    """Whether a template writes after what is in view as it does after the whole, tried on conversations of
    every kind of message. What it refuses is left out.

    Args:
        render: (messages, tools, whether the assistant's turn is begun) -> text. Raises ModelError.
    """
    return all(_holds(render, tools, Random(seed).choice) for seed in range(TALKS // 2) for tools in ((), _TOOLS))


def _holds(render: Render, tools: Tools, pick: Callable[[Sequence[Messages]], Messages]) -> bool:
    """As `looks_no_further`, on one conversation, at each of its turns."""
    said: Messages = (*pick(((), (_SYSTEM,))), *pick(((_USER,), (_USER, _USER))))
    marks: tuple[tuple[int, int], ...] = ()
    for _ in range(TURNS):
        marks = (*marks, (len(said), 0))
        said, new = (*said, *pick(_SAID)), pick(_HEARD)
        past = Past(said, tools, marks)
        try:
            expected = _following(render, past, new)
        except ModelError:
            break
        if not _same(render, past, new, _used(expected)):
            return False
        said = (*said, *new)
        marks = tuple(mark for mark, found in zip(marks, expected, strict=True) if any(found[:2]))  # where it forks
    return True


def _same(render: Render, past: Past, new: Messages, expected: Used | None) -> bool:
    view = in_view(past, new)
    if view is past:
        return True
    try:
        return _used(_following(render, view, new)) in (None, expected)  # where nothing agrees, the whole is shown
    except ModelError:
        return False


def _used(following: Sequence[Following]) -> Used | None:
    """All that an extension looks at: how far back the last place is that still agrees, what follows it, and what
    follows the last of all; None where none agrees."""
    agreeing = [i for i, found in enumerate(following) if any(found[:2])]
    return (len(following) - agreeing[-1], following[agreeing[-1]][:2], following[-1]) if agreeing else None


def _following(render: Render, past: Past, new: Sequence[Message]) -> list[Following]:
    """For each place where the policy was given the word, what stands after it once `new` is said, and what stood
    there before; None where that is written otherwise. Each with and without the beginning of its turn."""
    tools = past.tools
    whole, then = render([*past.messages, *new], tools, True), render(past.messages, tools, False)
    cuts = [[render(past.messages[:at], tools, ready) for ready in (True, False)] for at, _ in past.marks]
    return [tuple(_after(text, cut) for text, cut in product((whole, then), (*two, then))) for two in cuts]


def _after(text: str, cut: str) -> str | None:
    return text[len(cut) :] if text.startswith(cut) else None


def _last(messages: Sequence[Message], end: int, wanted: Callable[[Message], bool]) -> int:
    """The index of the last message before `end` that is `wanted`; 0 without one."""
    return next((i for i in range(end - 1, -1, -1) if wanted(messages[i])), 0)


def _speaks(message: Message) -> bool:
    return message.role == "assistant"


def _asks(message: Message) -> bool:
    return message.role == "user" and not message.text.startswith(_WRAPPED)
