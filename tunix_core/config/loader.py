"""Reads a config file and overrides into a RunConfig; every error says where."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from tunix_core.config.build import build
from tunix_core.config.checks import problems
from tunix_core.config.lines import Path as KeyPath
from tunix_core.config.lines import key_lines
from tunix_core.config.tree import RunConfig
from tunix_core.errors import ConfigError, did_you_mean


def load_config(path: Path | str | None, overrides: Sequence[str] = (), text: str | None = None) -> RunConfig:
    """The whole configuration of a run.

    Args:
        path: a TOML file; files under `plugins` are relative to it. None: there are `text` and overrides only.
        overrides: "key=value" each; the value is TOML, or else a string. Keys are dotted; a suite is
            reached by its name: "suite.games/frozen-lake.weight=2".
        text: TOML to read instead of the file.

    Raises:
        ConfigError: with file and line, or the override, of the first thing that is wrong.
    """
    source = str(path) if path is not None else "config"
    if text is None:
        text = _read(Path(path)) if path is not None else ""
    table = _parse(text, source)
    _expand_plugins(table)
    if path is not None:
        _anchor_files(table, Path(path).parent)
    places = _Places(source, key_lines(text))
    for override in overrides:
        places.overridden[_apply(table, override)] = f"-o {override}"
    _expand_plugins(table)
    config = build(RunConfig, {"suite": [], **table}, (), places.fail)
    config = replace(config, suites=tuple(replace(s, name=s.name or s.env) for s in config.suites))
    for place, message in problems(config):
        places.fail(place, message)
    return config


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"this config file can't be read: {reason}", source=str(path)) from error


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        raise ConfigError(f"not TOML: {error}", source=source, line=int(found[1]) if found else None) from error


def _expand_plugins(table: dict[str, Any]) -> None:
    if isinstance(table.get("plugins"), list):
        table["plugins"] = {"files": table["plugins"]}


def _anchor_files(table: Mapping[str, Any], folder: Path) -> None:
    """Files of plugins, and suites' interpreters, are named from where the config lies."""
    plugins, suites = table.get("plugins"), table.get("suite")
    if isinstance(plugins, dict) and isinstance(plugins.get("files"), list):
        plugins["files"] = [str((folder / f).resolve()) if isinstance(f, str) else f for f in plugins["files"]]
    for suite in suites if isinstance(suites, list) else ():
        if isinstance(suite, dict) and isinstance(python := suite.get("python"), str) and python:
            suite["python"] = os.path.abspath(folder / python)  # not resolved: it is a link out of its environment


class _Places:
    """Where each key was given: on a line of the file, or in an override."""

    def __init__(self, source: str, lines: Mapping[KeyPath, int]) -> None:
        self._source = source
        self._lines = lines
        self.overridden: dict[KeyPath, str] = {}

    def fail(self, path: KeyPath, message: str) -> NoReturn:
        """Raises ConfigError at the closest given place that contains `path`."""
        for length in range(len(path), 0, -1):
            place = path[:length]
            if place in self.overridden:
                raise ConfigError(message, source=self.overridden[place])
            if place in self._lines:
                raise ConfigError(message, source=self._source, line=self._lines[place])
        raise ConfigError(message, source=self._source)


def _apply(table: dict[str, Any], override: str) -> KeyPath:
    """Puts one override into the table; gives the path it wrote to."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError("an override looks like key=value, e.g. trainer.learning_rate=1e-3", source=f"-o {override}")
    path: KeyPath = ()
    if key.startswith("suite."):
        index, key = _find_suite(table, key.removeprefix("suite."), override)
        path, table = ("suite", index), table["suite"][index]
    *parents, last = key.split(".")
    for parent in parents:
        path = (*path, parent)
        if not isinstance(table.setdefault(parent, {}), dict):
            raise ConfigError(f"{parent!r} is not a table, so it has no {last!r}", source=f"-o {override}")
        table = table[parent]
    table[last] = parse_value(text.strip())
    return (*path, last)


def _find_suite(table: Mapping[str, Any], key: str, override: str) -> tuple[int, str]:
    """(index of the suite, the rest of the key) of "NAME.rest"; names may hold slashes and dots."""
    suites = table.get("suite", [])
    names = (
        [str(s.get("name") or s.get("env")) for s in suites if isinstance(s, dict)] if isinstance(suites, list) else []
    )
    matches = [(len(name), index) for index, name in enumerate(names) if key.startswith(f"{name}.")]
    if not matches:
        near = did_you_mean(key.rpartition(".")[0], names)
        message = f"no suite has the name in {key!r}.{near} Suites: {', '.join(names) or 'none'}"
        raise ConfigError(message, source=f"-o {override}")
    length, index = max(matches)
    return index, key[length + 1 :]


def parse_value(text: str) -> Any:
    """A value of the command line: TOML, or else the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text
