"""Tool calls written as Python: `look(where="left")`, alone, one a line, in a list, or inside `print(…)`."""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Mapping
from typing import Any

from tunix_core.types import ToolCall

LONGEST = 20_000  # characters of code that are read; more is no tool call but an accident
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_VALID_ESCAPES = frozenset("\n\\'\"abfnrtvxuUN01234567")
_JSON_NAMES = {"true": True, "false": False, "null": None}


def write_python_call(call: ToolCall) -> str | None:
    """The call as Python, or None when its names are no names in Python."""
    if isinstance(call.arguments, str):
        return call.arguments
    names = (*call.name.split("."), *call.arguments)
    if not all(name.isidentifier() and name.isascii() and not _is_keyword(name) for name in names):
        return None
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def read_python_calls(code: str) -> tuple[ToolCall, ...]:
    """Every call that `code` makes. At least one; after one that can't be read, the rest is not looked at."""
    try:
        calls = _calls_of(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return (ToolCall("", code, error=f"not a call in Python: {error}"),)
    if not calls:
        return (ToolCall("", code, error="expected name(argument=value, …), found no call"),)
    read: list[ToolCall] = []
    for call in calls:
        read.append(_read(call))
        if read[-1].error is not None:
            break
    return tuple(read)


def _calls_of(code: str) -> list[ast.Call]:
    if len(code) > LONGEST:
        raise ValueError(f"it has {len(code)} characters; at most {LONGEST} are read")
    doubled = _ESCAPE.sub(lambda m: m[0] if m[1] in _VALID_ESCAPES else "\\" + m[0], code.strip())
    values = [node.value for node in ast.parse(doubled).body if isinstance(node, ast.Expr | ast.Assign)]
    listed = [item for value in values for item in (value.elts if isinstance(value, ast.List | ast.Tuple) else [value])]
    return [_unprinted(item) for item in listed if isinstance(item, ast.Call)]


def _unprinted(call: ast.Call) -> ast.Call:
    """The call inside `print(…)`, which only shows a result."""
    shown = isinstance(call.func, ast.Name) and call.func.id == "print" and len(call.args) == 1
    return call.args[0] if shown and isinstance(call.args[0], ast.Call) else call


def _read(call: ast.Call) -> ToolCall:
    written, name = ast.unparse(call), ast.unparse(call.func)
    try:
        if not isinstance(call.func, ast.Name | ast.Attribute):
            raise ValueError("expected a tool's name before the parenthesis")
        if call.args or any(given.arg is None for given in call.keywords):
            raise ValueError(f"give each argument by its name: {name}(argument=value)")
        arguments = {str(given.arg): _value_of(given.value) for given in call.keywords}
        _check_json(arguments)
        return ToolCall(name, arguments)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        return ToolCall(name, written, error=f"an argument can't be read: {error}")


def _value_of(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(_JsonNames().visit(node))
    except ValueError:
        raise ValueError(f"expected a plain value, found {ast.unparse(node):.80}") from None


class _JsonNames(ast.NodeTransformer):
    """Reads true, false and null as JSON does."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node


def _check_json(arguments: Mapping[str, Any]) -> None:
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a string holds half a surrogate pair") from None


def _is_keyword(name: str) -> bool:
    return keyword.iskeyword(name)
