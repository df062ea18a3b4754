"""Tool calls as the policy writes them: `{"name": "...", "arguments": {...}}`, read with patience.

Whatever is written becomes a ToolCall; one that can't be read carries its error. Nothing here raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunix_core.types import ToolCall

_OBJECT = re.compile(r'\{\s*["}]')
_TAG = re.compile(r"</?tool_call>")
_BODY = re.compile(r'\s*\{\s*"')
_LOOSE = re.compile(r'\{\s*"(?:type"\s*:\s*"function"\s*,\s*")?(?:name|function)"\s*:')
_STRING_OR_BRACE = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}]', re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|,(\s*[}\]])', re.DOTALL)
_EMPTY_FENCE = re.compile(r"```[a-z_]*\s*```")
_DECODER = json.JSONDecoder(strict=False)
OPEN, CLOSE = "<tool_call>", "</tool_call>"


def write_call(call: ToolCall, arguments: str = "arguments") -> str:
    """The call as a policy writes it; one that could not be read, as it was written."""
    if isinstance(call.arguments, str):
        return call.arguments
    return json.dumps({"name": call.name, arguments: dict(call.arguments)}, ensure_ascii=False)


def read_call(text: str, id: str = "") -> ToolCall:
    """The first call that `text` holds.

    Text around it, code fences, trailing commas and arguments given as a JSON string are fine, and so is
    "parameters" for "arguments".

    Returns:
        The call; with `error` set, and the raw text as its arguments, when it can't be read.
    """
    call = _call_at(text, _start(text, 0))[0]
    return replace(call, id=id, arguments=call.arguments if call.error is None else text)


def read_calls(text: str) -> tuple[ToolCall, ...]:
    """Every call in `text`: objects one after another or in a list. At least one; after one that can't be
    read, the rest is not looked at."""
    first, end = _call_at(text, _start(text, 0))
    calls = [first if first.error is None else replace(first, arguments=text)]
    while calls[-1].error is None and (start := _start(text, end)) < len(text):
        call, end = _call_at(text, start)
        calls.append(call)
    return tuple(calls)


def split_calls(text: str) -> tuple[str, tuple[str, ...]]:
    """The text outside `<tool_call>…</tool_call>`, and what stands inside each; the last may be unclosed."""
    outside, inside, place = [], [], 0
    while (found := text.find(OPEN, place)) >= 0:
        outside.append(text[place:found])
        start = found + len(OPEN)
        tag = _TAG.search(text, _end_of_value(text, start))
        end = tag.start() if tag else len(text)
        inside.append(text[start:end])
        place = end + len(CLOSE) if text.startswith(CLOSE, end) else end
    outside.append(text[place:])
    return ("".join(outside).strip(), tuple(inside)) if inside else (text, ())


def loose_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The calls that stand in `text` with nothing to mark them, and the text around them.

    `{"name": …}` is one when it also has "arguments" or "parameters"; when it can't be read, the rest of
    the text is one call with an error.
    """
    outside, calls, place = [], [], 0
    while found := _LOOSE.search(text, place):
        start = found.start()
        outside.append(text[place:start])
        call, place = _call_at(text, start)
        if call.error is None and not _has_arguments(text[start:place]):
            outside.append(text[start:place])
        else:
            calls.append(call)
    outside.append(text[place:])
    return (_tidy(outside), tuple(calls)) if calls else (text, ())


def _start(text: str, place: int) -> int:
    found = _OBJECT.search(text, place)
    return found.start() if found else len(text)


def _call_at(text: str, start: int) -> tuple[ToolCall, int]:
    """The call whose object begins at `start`, and where it ends; after one that isn't JSON, the text's end."""
    name, end = "", len(text)
    try:
        value, end = _object_at(text, start)
        if isinstance(value.get("function"), Mapping):  # the form of function-calling interfaces
            value = value["function"]
        name = _name_of(value)
        return ToolCall(name, _arguments_of(value)), end
    except RecursionError:
        return ToolCall(name, text[start:end], error="the JSON is nested too deeply"), end
    except ValueError as error:
        return ToolCall(name, text[start:end], error=str(error)), end


def _object_at(text: str, start: int) -> tuple[Mapping[str, Any], int]:
    if start == len(text):
        raise ValueError('expected {"name": ..., "arguments": {...}}, found no JSON object')
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        end = _closing(text, start)
        value = _decode(_STRING_OR_LAST_COMMA.sub(lambda match: match[1] or match[2], text[start:end]))
    _check_json(value)
    return value, end


def _decode(text: str) -> Any:
    try:
        return _DECODER.raw_decode(text)[0]
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _closing(text: str, start: int) -> int:
    """Where the object that begins at `start` ends, braces in strings apart."""
    depth = 0
    for match in _STRING_OR_BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(text)


def _end_of_value(text: str, start: int) -> int:
    """After the JSON object that begins a tag's body, so that a tag inside a string is no tag; else `start`."""
    body = _BODY.match(text, start)
    if body is None:
        return start
    try:
        return _DECODER.raw_decode(text, text.index("{", start))[1]
    except (ValueError, RecursionError):
        return start


def _check_json(value: Any) -> None:
    """It can be written as JSON again, and has no half characters."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a string holds half a surrogate pair") from None


def _name_of(value: Mapping[str, Any]) -> str:
    name = value.get("name", value.get("function"))
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f'expected "name" to be the tool\'s name, found {name!r:.80}')
    return name.strip()


def _arguments_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    key = "parameters" if "parameters" in value and "arguments" not in value else "arguments"
    arguments = value.get(key, {})
    if isinstance(arguments, str):
        arguments = _object_at(arguments, _start(arguments, 0))[0] if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise ValueError(f'expected "{key}" to be an object, found {arguments!r:.80}')
    return arguments


def _has_arguments(written: str) -> bool:
    return '"arguments"' in written or '"parameters"' in written


def _tidy(pieces: Sequence[str]) -> str:
    """The text around calls, without what only joined or fenced them."""
    said = [piece for piece in pieces if piece.strip("[];, \t\n")]
    return _EMPTY_FENCE.sub("", "".join(said)).strip()
