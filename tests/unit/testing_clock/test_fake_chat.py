"""The fake chat format keeps the contract of a chat format."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.contracts import ChatFormat
from tunix_core.testing.chat import END, ROLES, FakeChatFormat, FakeTokenizer
from tunix_core.types import Message, ToolCall

CHAT = FakeChatFormat()
TOKENIZER = FakeTokenizer()


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_text_survives_the_tokenizer_and_never_becomes_special(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    assert tokens.dtype == np.int32 and (tokens < 256).all()


def test_a_conversation_opened_and_extended_equals_one_opened_whole() -> None:
    chat: ChatFormat = CHAT
    user, said, seen = Message.of("user", "hi"), Message.of("assistant", "up"), Message.of("user", "ice")
    opened = chat.open([user])
    assert opened[0] == ROLES["user"] and opened[-1] == ROLES["assistant"]
    for ending in ([], [END]):
        history = np.concatenate([opened, TOKENIZER.encode("up"), np.asarray(ending, np.int32)])
        delta = chat.extend(history, [seen])
        assert delta.keep == len(history)
        assert np.concatenate([history, delta.tokens]).tolist() == chat.open([user, said, seen]).tolist()


def test_tools_are_listed_first() -> None:
    opened = CHAT.open([Message.of("user", "hi")], [{"name": "add"}])
    assert opened[0] == ROLES["system"] and '"add"' in TOKENIZER.decode(opened)


@given(st.lists(st.integers(0, 260)))
def test_whatever_was_sampled_is_read_without_raising(tokens: list[int]) -> None:
    assert CHAT.parse(np.asarray(tokens, np.int32)).role == "assistant"


def test_a_call_is_read_and_written_back() -> None:
    text = 'so<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    message = CHAT.parse(TOKENIZER.encode(text))
    assert message.text == "so"
    assert message.tool_calls == (ToolCall("add", {"a": 1}, "call_0"),)
    assert text in TOKENIZER.decode(CHAT.open([message]))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>{nope</tool_call>", "not JSON"),
        ("<tool_call>[1]</tool_call>", "a call is"),
        ('<tool_call>{"name": 3}</tool_call>', "a call is"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "must be an object"),
        ('<tool_call>{"name": "f"}', "no </tool_call>"),
    ],
)
def test_a_call_that_cannot_be_read_carries_its_error(text: str, error: str) -> None:
    (call,) = CHAT.parse(TOKENIZER.encode(text)).tool_calls
    assert call.error is not None and error in call.error
