"""A byte tokenizer and a plain chat format, for tests of what lies around a model.

Ids 0..255 are bytes; then come one token per role and the end of a turn. A message is its role's
token, its text, and the end token. A call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunix_core.contracts import Past, Rendering
from tunix_core.types import Message, ToolCall

ROLES = {"system": 256, "user": 257, "assistant": 258, "tool": 259}
END = 260
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)


class FakeTokenizer:
    """UTF-8 bytes as ids. Text never becomes a special token."""

    vocab_size = 261

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        return bytes(int(token) for token in tokens if token < 256).decode(errors="replace")


class FakeChatFormat:
    """A ChatFormat over FakeTokenizer; it never rewrites history."""

    stop_tokens = (END,)

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()

    def open(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> np.ndarray:
        listed = [Message.of("system", json.dumps(list(tools)))] if tools else []
        return self._render([*listed, *messages])

    def extend(self, history: np.ndarray, messages: Sequence[Message], past: Past | None = None) -> Rendering:
        closing = [] if len(history) and history[-1] == END else [END]
        return Rendering(np.concatenate([np.asarray(closing, np.int32), self._render(messages)]), len(history))

    def parse(self, tokens: np.ndarray) -> Message:
        ends = np.flatnonzero(np.asarray(tokens) == END)
        text = self.tokenizer.decode(tokens[: ends[0]] if len(ends) else tokens)
        calls = [_call(index, *found.groups()) for index, found in enumerate(_CALL.finditer(text))]
        return Message.of("assistant", _CALL.sub("", text), tool_calls=tuple(calls))

    def say(self, message: Message) -> np.ndarray:
        return np.asarray([*self.tokenizer.encode(_text(message)), END], np.int32)

    def _render(self, messages: Sequence[Message]) -> np.ndarray:
        parts = [part for m in messages for part in (np.asarray([ROLES[m.role]], np.int32), self.say(m))]
        return np.concatenate([*parts, np.asarray([ROLES["assistant"]], np.int32)])


def _text(message: Message) -> str:
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return message.text + "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


def _call(index: int, body: str, closing: str) -> ToolCall:
    name = f"call_{index}"
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = f"not JSON: {error}" if closing else "the call has no </tool_call>"
        return ToolCall("", body, name, reason)
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return ToolCall("", body, name, 'a call is {"name": "…", "arguments": {…}}')
    arguments = said.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(said["name"], json.dumps(arguments), name, "arguments must be an object")
    return ToolCall(said["name"], arguments, name, None if closing else "the call has no </tool_call>")
