from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.models import read_call, split_calls, write_call
from tunix_core.types import ToolCall

CALL = '{"name": "calculator", "arguments": {"expression": "37 * 84"}}'
READ = ToolCall("calculator", {"expression": "37 * 84"}, "call_0")


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"```json\n{CALL}\n```",
        f"I will compute: {CALL} and then answer",
        f"  \n{CALL}}}}}",
        '{"name": "calculator", "arguments": {"expression": "37 * 84",},}',
        '{"name": "calculator", "arguments": "{\\"expression\\": \\"37 * 84\\"}"}',
        '{"arguments": {"expression": "37 * 84"}, "name": " calculator "}',
        f"{{so}} {CALL}",
    ],
)
def test_a_call_is_read_with_patience(text: str) -> None:
    assert read_call(text, "call_0") == READ


def test_commas_inside_a_string_stay_when_trailing_ones_go() -> None:
    assert read_call('{"name": "say", "arguments": {"text": "a,} \\",] b",}}').arguments == {"text": 'a,} ",] b'}


@pytest.mark.parametrize("arguments", ["", ', "arguments": ""', ', "arguments": {}'])
def test_a_call_may_have_no_arguments(arguments: str) -> None:
    assert read_call(f'{{"name": "look"{arguments}}}') == ToolCall("look", {})


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("", "", "found no JSON object"),
        ("calculator(37 * 84)", "", "found no JSON object"),
        ('{"name": "calculator", "arguments": {"expre', "", "not JSON"),
        ('{"arguments": {}}', "", 'expected "name"'),
        ('{"name": 3}', "", "found 3"),
        ('{"name": "look", "arguments": [1]}', "look", 'expected "arguments" to be an object'),
        ('{"name": "look", "arguments": "here"}', "look", "found no JSON object"),
        ('{"name": "look", "arguments": {"x": NaN}}', "", "not JSON compliant"),
        ('{"name": "look", "arguments": {"x": 1e999}}', "", "not JSON compliant"),
        ('{"name": "look", "arguments": {"x": "\\ud800"}}', "", "surrogate"),
        ('{"name": "look", "arguments": {"x": ' + "9" * 5000 + "}}", "", "digits"),
        ('{"name": "look", "arguments": {"x": ' + "[" * 200_000, "", "nested too deeply"),
        ('{"name":"look","arguments":' + '{"a":' * 100_000 + "1" + "}" * 100_001, "", "nested too deeply"),
    ],
)
def test_a_call_that_cannot_be_read_carries_the_reason_and_the_text(text: str, name: str, reason: str) -> None:
    call = read_call(text, "call_3")
    assert (call.name, call.arguments, call.id) == (name, text, "call_3")
    assert call.error and reason in call.error


def test_a_call_that_cannot_be_read_is_written_as_it_was() -> None:
    assert write_call(read_call("{broken")) == "{broken"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), VALUES, max_size=3))
def test_what_is_written_is_read(arguments: dict) -> None:
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert read_call(write_call(ToolCall("tool", arguments))) == ToolCall("tool", arguments)


PIECES = st.sampled_from(
    ['{"name": "', '"arguments"', ": ", "{", "}", "[", "]", ",", '"', "\\", "\\u", "d800", "```", "e9", "-", "NaN",
     "<tool_call>", "</tool_call>", "null", "3", "calculator", " ", "\n", "\x00", CALL]
)  # fmt: skip


@settings(max_examples=2000, deadline=1000)
@given(text=st.lists(PIECES, max_size=20).map("".join))
def test_nothing_that_is_written_raises(text: str) -> None:
    outside, inside = split_calls(text)
    assert isinstance(outside, str)
    for body in (text, *inside):
        call = read_call(body)
        assert (call.error is None) == isinstance(call.arguments, dict)
        json.dumps(dict(call.arguments) if call.error is None else call.error, ensure_ascii=False)


@pytest.mark.parametrize("text", ['"\\' * 50_000, '{"' * 50_000, "<tool_call>" * 20_000, '{"a":1' + ", " * 50_000])
def test_hostile_text_takes_linear_time(text: str) -> None:
    assert read_call('{"' + text).error
    split_calls(text)


def test_tagged_calls_stand_apart_from_the_text() -> None:
    text, inside = split_calls(f"first <tool_call>{CALL}</tool_call> then <tool_call>\n{CALL}")
    assert text == "first  then"
    assert [read_call(body, "call_0") for body in inside] == [READ, READ]
    assert split_calls(" no call ") == (" no call ", ())
