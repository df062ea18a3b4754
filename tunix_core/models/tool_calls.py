"""Tool calls as the policy writes them: `{"name": "...", "arguments": {...}}`, read with patience.

Whatever is written becomes a ToolCall; one that can't be read carries its error. Nothing here raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tunix_core.types import ToolCall

_OBJECT = re.compile(r'\{\s*["}]')
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|,(\s*[}\]])', re.DOTALL)


def write_call(call: ToolCall) -> str:
    """The call as a policy writes it; one that could not be read, as it was written."""
    if isinstance(call.arguments, str):
        return call.arguments
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)


def read_call(text: str, id: str = "") -> ToolCall:
    """The call that `text` holds.

    Text around it, code fences, trailing commas and arguments given as a JSON string are fine.

    Returns:
        The call; with `error` set, and the raw text as its arguments, when it can't be read.
    """
    name = ""
    try:
        value = _read_object(text)
        name = _name_of(value)
        return ToolCall(name, _arguments_of(value), id)
    except RecursionError:
        return ToolCall(name, text, id, "the JSON is nested too deeply")
    except ValueError as error:
        return ToolCall(name, text, id, str(error))


def split_calls(text: str) -> tuple[str, tuple[str, ...]]:
    """The text outside `<tool_call>…</tool_call>`, and what stands inside each; the last may be unclosed."""
    inside = tuple(match[1] for match in _TAGGED.finditer(text))
    return (_TAGGED.sub("", text).strip(), inside) if inside else (text, ())


def _read_object(text: str) -> Mapping[str, Any]:
    start = _OBJECT.search(text)
    if not start:
        raise ValueError('expected {"name": ..., "arguments": {...}}, found no JSON object')
    found = text[start.start() :]
    try:
        value = _decode(found)
    except json.JSONDecodeError:
        value = _decode(_STRING_OR_LAST_COMMA.sub(lambda match: match[1] or match[2], found))
    return value


def _decode(text: str) -> Any:
    """The JSON value that `text` begins with; it can be written as JSON again."""
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(f"not JSON: {error.msg}", error.doc, error.pos) from None
    _check_json(value)
    return value


def _check_json(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a string holds half a surrogate pair") from None


def _name_of(value: Mapping[str, Any]) -> str:
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f'expected "name" to be the tool\'s name, found {name!r:.80}')
    return name.strip()


def _arguments_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _read_object(arguments) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise ValueError(f'expected "arguments" to be an object, found {arguments!r:.80}')
    return arguments
