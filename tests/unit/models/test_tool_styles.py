from __future__ import annotations

import json
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.models.tool_styles import STYLES, style_of
from tunix_core.types import ToolCall

HERMES, LLAMA3, GEMMA = STYLES["hermes"], STYLES["llama3"], STYLES["gemma"]
UP = ToolCall("look", {"where": "up", "n": 2}, "call_0")
GO = ToolCall("go", {}, "call_1")
A = '{"name": "look", "arguments": {"where": "up", "n": 2}}'
P = '{"name": "look", "parameters": {"where": "up", "n": 2}}'
G = '{"name": "go", "parameters": {}}'
every_style = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        (f"<tool_call>\n{A}\n</tool_call>", "", [UP]),
        (f'<tool_call>{A}</tool_call>\n<tool_call>{{"name": "go"}}</tool_call>', "", [UP, GO]),
        (f'<tool_call>{A}\n{{"name": "go"}}</tool_call>', "", [UP, GO]),
        (f'<tool_call>[{A}, {{"name": "go"}}]</tool_call>', "", [UP, GO]),
        (f"I look. <tool_call>```json\n{A}\n```</tool_call> Then?", "I look.  Then?", [UP]),
        (f"<tool_call>{A}<tool_call>{G}", "", [UP, GO]),
        ('<tool_call>{"name": "look", "arguments": {"where": "up", "n": 2,},}</tool_call>', "", [UP]),
        ('<tool_call>{"name": "look", "arguments": "{\\"where\\": \\"up\\", \\"n\\": 2}"}</tool_call>', "", [UP]),
        ('<tool_call>{"type": "function", "function": ' + A + "}</tool_call>", "", [UP]),
        (f"```json\n{A}\n```", "", [UP]),
        (f" {A} ", "", [UP]),
        (f"<think>\n<tool_call>{G}</tool_call>?\n</think>\n\n<tool_call>{A}</tool_call>", None, [UP]),
        (f"<think>\nperhaps <tool_call>{G}</tool_call>", None, []),
        (f"An example is {A}, so.", None, []),
        ('{"name": "Ada", "age": 36}', None, []),
        ("no call", "no call", []),
    ],
)
def test_hermes_calls_are_read(said: str, text: str | None, calls: list[ToolCall]) -> None:
    found, read = HERMES.read(said)
    assert list(read) == calls
    whole = said.partition("\n\n<tool_call>")[0]
    assert found == (whole if text is None else text)


def test_a_tag_inside_a_string_is_no_tag() -> None:
    text = "say </tool_call> and <tool_call>"
    call = ToolCall("say", {"text": text}, "call_0")
    assert HERMES.read(HERMES.write([call, call]))[1] == (call, ToolCall("say", {"text": text}, "call_1"))


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        (P, "", [UP]),
        (A, "", [UP]),
        (f"{P}; {G}", "", [UP, GO]),
        (f"[{P},\n {G}]", "", [UP, GO]),
        (f"```\n{P}\n```", "", [UP]),
        (f"Let me see: {P}", "Let me see:", [UP]),
        (f"<|python_tag|>{P}", "", [UP]),
        (f"I call.<|python_tag|>{P}<|python_tag|>{G}", "I call.", [UP, GO]),
        ('<|python_tag|>look(where="up", n=2)', "", [UP]),
        ('<|python_tag|>browser.search(query="x")', "", [ToolCall("browser.search", {"query": "x"}, "call_0")]),
        ('{"type": "function", "name": "go", "parameters": {}}', "", [ToolCall("go", {}, "call_0")]),
        ('{"type": "function", "function": "go", "parameters": {}}', "", [ToolCall("go", {}, "call_0")]),
        ('The record is {"name": "Ada"}.', 'The record is {"name": "Ada"}.', []),
        ("2 + 3 = 5", "2 + 3 = 5", []),
    ],
)
def test_llama3_calls_are_read(said: str, text: str, calls: list[ToolCall]) -> None:
    assert LLAMA3.read(said) == (text, tuple(calls))


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        ('```tool_code\nlook(where="up", n=2)\n```', "", [UP]),
        ("```tool_code\nprint(look(where='up', n=2))\n```", "", [UP]),
        ("I look.\n```tool_code\nlook(where='up', n=2)\ngo()\n```\nWait.", "I look.\n\nWait.", [UP, GO]),
        ("```tool_code\nx = look(where='up', n=2)\n```\n```tool_code\n[go()]\n```", "", [UP, GO]),
        ("```tool_code\nlook(where='up', n=2)", "", [UP]),
        ("```tool_code look(where='up', n=2)```", "", [UP]),
        (f"```tool_code\n{P}\n```", "", [UP]),
        (f"```json\n{P}\n```", "", [UP]),
        ("[look(where='up', n=2), go()]", "", [UP, GO]),
        ("```python\nprint(1)\n```", "```python\nprint(1)\n```", []),
        (
            '```tool_code\nfind(re="\\d+\\.\\n", deep={"a": [true, None, -1.5]})\n```',
            "",
            [ToolCall("find", {"re": "\\d+\\.\n", "deep": {"a": [True, None, -1.5]}}, "call_0")],
        ),
    ],
)
def test_gemma_calls_are_read(said: str, text: str, calls: list[ToolCall]) -> None:
    assert GEMMA.read(said) == (text, tuple(calls))


@pytest.mark.parametrize(
    ("style", "said", "name", "reason"),
    [
        (HERMES, '<tool_call>{"name": "look", "arguments": {"whe</tool_call>', "", "not JSON"),
        (HERMES, "<tool_call>look up</tool_call>", "", "found no JSON object"),
        (HERMES, "<tool_call></tool_call>", "", "found no JSON object"),
        (HERMES, '<tool_call>{"name": "look", "arguments": [1]}</tool_call>', "look", '"arguments" to be an object'),
        (LLAMA3, '{"name": "look", "parameters": 3}', "look", 'expected "parameters" to be an object, found 3'),
        (LLAMA3, '{"name": "look", "parameters": {"x": ', "", "not JSON"),
        (LLAMA3, "<|python_tag|>import os", "", "found no call"),
        (LLAMA3, "<|python_tag|>look(", "", "not a call in Python"),
        (GEMMA, "```tool_code\nlook('up')\n```", "look", r"give each argument by its name: look(argument=value)"),
        (GEMMA, "```tool_code\nlook(where=here)\n```", "look", "expected a plain value, found here"),
        (GEMMA, "```tool_code\nlook(where=open('/etc/passwd'))\n```", "look", "expected a plain value"),
        (GEMMA, "```tool_code\nlook(**x)\n```", "look", "by its name"),
        (GEMMA, "```tool_code\nlook(x=1e999)\n```", "look", "not JSON compliant"),
        (GEMMA, "```tool_code\nlook(x=b'1')\n```", "look", "not JSON serializable"),
        (GEMMA, "```tool_code\nf()()\n```", "f()", "expected a tool's name"),
        (GEMMA, "```tool_code\n" + "(" * 5000 + "\n```", "", "not a call in Python"),
        (GEMMA, "```tool_code\nlook(x=" + "-" * 15_000 + "1)\n```", "", "not a call in Python"),
        (GEMMA, "```tool_code\nlook(x='" + "a" * 30_000 + "')\n```", "", "at most 20000 are read"),
    ],
)
def test_what_cannot_be_read_is_a_call_that_says_why(style, said: str, name: str, reason: str) -> None:
    call = style.read(said)[1][0]
    assert isinstance(call.arguments, str) and call.id == "call_0"
    assert call.error and reason in call.error
    assert call.name == name


JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
    | JSON_TEXT | st.sampled_from(["```", "\n```\n", "</tool_call>", "<tool_call>", "'\"", "\\d", "; "]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(JSON_TEXT, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
NAMES = st.sampled_from(["look", "a.b", "class", "with space", "go_2", "é"])


@every_style
@settings(max_examples=150)
@given(
    written=st.lists(
        st.tuples(NAMES, st.dictionaries(JSON_TEXT | st.sampled_from(["x", "y_1"]), VALUES, max_size=2)),
        min_size=1,
        max_size=3,
    )
)
def test_what_a_style_writes_it_reads(style, written: list) -> None:
    calls = tuple(ToolCall(name, arguments, f"call_{i}") for i, (name, arguments) in enumerate(written))
    assert style.read(style.write(calls)) == ("", calls)
    assert style.read("I do.\n" + style.write(calls))[1] == calls


PIECES = (
    '{"name": "', '"name"', '"arguments"', '"parameters": ', ": ", "{", "}", "[", "]", ",", '"', "'", "\\", "\\u",
    "d800", "```", "```tool_code\n", "```json\n", "<|python_tag|>", "(", ")", "=", "print(", "look(", "x=", "e9", "-",
    "NaN", "*",
    "<tool_call>", "</tool_call>", "<think>", "</think>", "null", "true", "3", "look", " ", "\n", "\t", "\x00", ";",
    "é", "lambda", "f'{", "#", "0x", "\ud800", A, P, 'go(x="1")',
)  # fmt: skip
FIRST = 0x4E00  # a letter for each piece: drawing a text is several times faster than drawing a list
LETTERS = st.text(st.characters(min_codepoint=FIRST, max_codepoint=FIRST + len(PIECES) - 1), max_size=25)
TEXTS = LETTERS.map(lambda text: "".join(PIECES[ord(letter) - FIRST] for letter in text)) | st.text(max_size=40)


def check(text: str) -> None:
    for style in STYLES.values():
        started = process_time()
        around, calls = style.read(text)
        assert isinstance(around, str)
        for call in calls:
            assert (call.error is None) == isinstance(call.arguments, dict)
            json.dumps([call.error, call.arguments])
        style.write(calls)
        assert process_time() - started < 5


@settings(max_examples=2_000)
@given(text=TEXTS)
def test_whatever_is_said_is_read(text: str) -> None:
    check(text)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=100_000)
@given(text=TEXTS)
def test_whatever_is_said_is_read_100_000_times(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "piece",
    ["<tool_call>", '<tool_call>{"', "```tool_code\n", '{"name":', '{"name": "a", "parameters": {}}', "<|python_tag|>",
     "<think>", "</think>", "```", "[a(", "(", '{"a":[', "\\", '"', " ", "\n", "{ ", "```json ", "f(x=", "-", "a.",
     '<tool_call>{"name": "f", "arguments": {"x": "', "[[", "1+", "not "]
)  # fmt: skip
def test_hostile_text_takes_little_time(piece: str) -> None:
    text = piece * (60_000 // len(piece))
    for said in (
        text,
        "```tool_code\n" + text[:19_000],
        "<tool_call>" + text,
        '{"name": ' + text,
        "[a(" + text[:19_000],
    ):
        check(said)


@pytest.mark.parametrize(
    ("template", "name"),
    [("<|start_header_id|>", "llama3"), ("<start_of_turn>", "gemma"), ("<|im_start|>", "hermes"), ("", "hermes")],
)
def test_a_templates_family_is_known_by_its_tokens(template: str, name: str) -> None:
    assert style_of(template).name == name
