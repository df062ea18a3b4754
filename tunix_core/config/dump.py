"""A RunConfig as TOML that `load_config` reads back equal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from typing import Any

from tunix_core.config.build import toml_name
from tunix_core.config.tree import RunConfig
from tunix_core.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump_config(config: RunConfig) -> str:
    """Every key with its value, defaults included; None is left out.

    Raises:
        ConfigError: an option's value has no TOML form.
    """
    return "\n".join(_table(config, "")).lstrip("\n") + "\n"


def _table(node: Any, name: str) -> Iterator[str]:
    """Lines of one table: its plain keys first, then what opens tables of its own."""
    content = {toml_name(type(node), f.name): getattr(node, f.name) for f in fields(node)}
    tables = {key: value for key, value in content.items() if is_dataclass(value) or key == "suite"}
    for key, value in content.items():
        if key not in tables and value is not None:
            yield f"{key} = {toml_value(value)}"
    for key, value in tables.items():
        full = f"{name}.{key}" if name else key
        many = value if isinstance(value, tuple) else (value,)
        for item in many:
            yield f"\n[[{full}]]" if isinstance(value, tuple) else f"\n[{full}]"
            yield from _table(item, full)


def toml_value(value: Any) -> str:
    """A value on one line of TOML. Raises ConfigError when it has no such form."""
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    raise ConfigError(f"the value {value!r} has no TOML form; use numbers, strings, booleans, lists and tables")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
