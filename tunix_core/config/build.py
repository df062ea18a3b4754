"""Plain TOML values into dataclasses, by their type hints. Knows types, not what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from tunix_core.config.lines import Path
from tunix_core.config.tree import CurriculumConfig, RewardConfig, RunConfig
from tunix_core.errors import did_you_mean

Fail = Callable[[Path, str], NoReturn]
_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def toml_name(cls: type, field: str) -> str:
    """What a field is called in the file: the list `suites` is written as [[suite]]."""
    return "suite" if cls is RunConfig and field == "suites" else field


def build(cls: type, table: Any, path: Path, fail: Fail) -> Any:
    """A `cls` from a TOML table.

    Args:
        path: where the table stands, from the root.
        fail: raises the error, given the path of the culprit and what is wrong with it.
    """
    if cls in (RewardConfig, CurriculumConfig) and isinstance(table, str):
        table = {"id": table}
    if not isinstance(table, Mapping):
        fail(path, f"{_dotted(path)} must be a table, and is {_shown(table)}")
    hints = get_type_hints(cls)
    names = {toml_name(cls, field.name): field for field in fields(cls)}
    for key in table:
        if key not in names:
            where = f" in {_dotted(path)}" if path else ""
            fail((*path, key), f"unknown key {key!r}{where}.{did_you_mean(key, list(names))}")
    for key, field in names.items():
        if key not in table and field.default is MISSING and field.default_factory is MISSING:
            fail(path, f"{_dotted((*path, key))} is missing; it has no default")
    return cls(**{names[key].name: _convert(hints[names[key].name], table[key], (*path, key), fail) for key in table})


def _convert(hint: Any, value: Any, path: Path, fail: Fail) -> Any:
    if hint is Any:
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        return build(hint, value, path, fail)
    if hint in _SCALARS:
        return _scalar(hint, value, path, fail)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):  # always `X | None`; TOML has no null, an absent key says it
        return _convert(arguments[0], value, path, fail)
    if origin is Literal:
        return _choice(arguments, value, path, fail)
    if origin is tuple:
        return _items(arguments[0], value, path, fail)
    if not isinstance(value, Mapping):
        fail(path, f"{_dotted(path)} must be a table, and is {_shown(value)}")
    return dict(value)


def _scalar(hint: type, value: Any, path: Path, fail: Fail) -> Any:
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        fail(path, f"{_dotted(path)} must be {_SCALARS[hint]}, and is {_shown(value)}")
    if hint is float and not math.isfinite(value):
        fail(path, f"{_dotted(path)} must be finite, and is {value}")
    return value


def _choice(choices: tuple[Any, ...], value: Any, path: Path, fail: Fail) -> Any:
    if value not in choices:
        near = did_you_mean(value, choices) if isinstance(value, str) else ""
        listed = ", ".join(repr(choice) for choice in choices)
        fail(path, f"{_dotted(path)} must be one of {listed}, and is {_shown(value)}.{near}")
    return value


def _items(hint: Any, value: Any, path: Path, fail: Fail) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        hedge = " (write [[suite]], with two brackets)" if path == ("suite",) else ""
        fail(path, f"{_dotted(path)} must be a list, and is {_shown(value)}{hedge}")
    return tuple(_convert(hint, item, (*path, index), fail) for index, item in enumerate(value))


def _dotted(path: Path) -> str:
    """("suite", 0, "weight") -> "suite[0].weight"."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "the file"


def _shown(value: Any) -> str:
    kinds = {int: "the number", float: "the number", str: "the string"}
    if isinstance(value, bool):
        return str(value).lower()
    if type(value) in kinds:
        return f"{kinds[type(value)]} {value!r}"
    return "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list | tuple) else repr(value)
