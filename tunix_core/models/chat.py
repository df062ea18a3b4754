"""Our own chat format: each turn is a role's special token, the text, and an end token.

    <|system|>tools: calculator(expression) finish(answer)<|end|><|user|>Use the calculator: 37 * 84<|end|>
    <|assistant|><|call|>{"name": "calculator", "arguments": {"expression": "37 * 84"}}<|end|>
    <|tool|>3108<|end|><|assistant|>

(without the line breaks). A conversation is only ever appended to. The names are data, `ChatTokens`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import numpy as np

from tunix_core.contracts import Past, Rendering
from tunix_core.errors import UsageError
from tunix_core.models.tokenizer import FastTokenizer
from tunix_core.models.tool_calls import read_call, split_calls, write_call
from tunix_core.types import Message, TextPart

FORMAT = "turns"


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """The special tokens of a chat format, by what they mean.

    `call` begins a tool call, which is `{"name": ..., "arguments": {...}}`; several may follow one another.
    """

    system: str = "<|system|>"
    user: str = "<|user|>"
    assistant: str = "<|assistant|>"
    tool: str = "<|tool|>"
    end: str = "<|end|>"
    call: str = "<|call|>"
    pad: str = "<|pad|>"

    def to_json(self) -> str:
        """The content of its chat.json."""
        return json.dumps({"format": FORMAT, "tokens": asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises UsageError when `text` is not what `to_json` gives."""
        try:
            value = json.loads(text)
            given, tokens = value["format"], dict(value["tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f'a chat format is {{"format": "{FORMAT}", "tokens": {{...}}}}; {error!r}') from error
        if given != FORMAT:
            raise UsageError(f"unknown chat format {given!r}; known is {FORMAT!r}")
        known = {f.name for f in fields(cls)}
        if set(tokens) != known or not all(isinstance(name, str) for name in tokens.values()):
            raise UsageError(f"a chat format's tokens are {sorted(known)}, each a text; given were {sorted(tokens)}")
        return cls(**tokens)


class TurnChat:
    """Turns between special tokens (contracts.ChatFormat).

    Args:
        tokenizer: has the special tokens.
        tokens: their names.

    Raises:
        UsageError: the tokenizer lacks one of them.
    """

    def __init__(self, tokenizer: FastTokenizer, tokens: ChatTokens | None = None) -> None:
        self.tokens = tokens or ChatTokens()
        self._tokenizer = tokenizer
        self._ids = {role: tokenizer.special_id(name) for role, name in asdict(self.tokens).items()}
        self._alone = {role: np.asarray([id], np.int32) for role, id in self._ids.items()}
        self.stop_tokens: tuple[int, ...] = (self._ids["end"],)
        self.pad_token: int = self._ids["pad"]

    def open(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> np.ndarray:
        """The first messages, ready for the policy to speak: int32 [T]. Tools are listed in the system turn."""
        return np.concatenate(self._turns(_with_tools(messages, tools)))

    def extend(self, history: np.ndarray, messages: Sequence[Message], past: Past | None = None) -> Rendering:
        """Closes the turn that ends `history` if it is open, then renders `messages`; nothing is rewritten,
        so `past` isn't needed."""
        is_closed = len(history) and int(history[-1]) == self._ids["end"]
        closing = () if is_closed else (self._alone["end"],)
        return Rendering(np.concatenate([*closing, *self._turns(messages)]), len(history))

    def parse(self, tokens: np.ndarray) -> Message:
        """The assistant message that sampled `tokens` say, up to their end token. Never raises."""
        ids = np.asarray(tokens, np.int32).tolist()
        said, *calls = _split(_before(ids, self._ids["end"]), self._ids["call"])
        text, tagged = split_calls(self._tokenizer.decode(said))
        written = [*tagged, *(self._tokenizer.decode(call) for call in calls)]
        read = tuple(read_call(call, f"call_{i}") for i, call in enumerate(written))
        return Message("assistant", (TextPart(text),) if text else (), read)

    def say(self, message: Message) -> np.ndarray:
        """The ids a policy samples to say `message`, end token included: int32 [T]."""
        return np.concatenate(self._said(message))

    def _turns(self, messages: Sequence[Message]) -> list[np.ndarray]:
        turns = [part for message in messages for part in (self._alone[message.role], *self._said(message))]
        return [*turns, self._alone["assistant"]]

    def _said(self, message: Message) -> list[np.ndarray]:
        parts = [self._tokenizer.encode(message.text)]
        for call in message.tool_calls:
            parts += [self._alone["call"], self._tokenizer.encode(write_call(call))]
        return [*parts, self._alone["end"]]


def _with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Sequence[Message]:
    if not tools:
        return messages
    listed = "tools: " + " ".join(_signature(tool) for tool in tools)
    if messages and messages[0].role == "system":
        first = messages[0]
        return [replace(first, content=(*first.content, TextPart(f"\n{listed}"))), *messages[1:]]
    return [Message.of("system", listed), *messages]


def _signature(tool: Mapping[str, Any]) -> str:
    return f"{tool['name']}({', '.join(tool.get('parameters', {}).get('properties', {}))})"


def _before(ids: list[int], token: int) -> list[int]:
    return ids[: ids.index(token)] if token in ids else ids


def _split(ids: list[int], token: int) -> list[list[int]]:
    """The runs between occurrences of `token`; at least one, perhaps empty."""
    runs = [[]]
    for id in ids:
        if id == token:
            runs.append([])
        else:
            runs[-1].append(id)
    return runs
