"""The official harness, asked in a process of its own: its imports seize the root logger and load far more
than a parser needs.

Run as a script: one JSON question on standard input, one JSON answer on standard output.

    {"ask": "parse", "parser", "log", "row": {"instance_id", "repo", "version"}}  -> {test id: status}
    {"ask": "unknown", "parsers": [name]}  -> [those it doesn't have]
    {"ask": "describe", "rows": [row]}  -> [{"eval_script", "log_parser"} | {"problem"}]   harness up to 4.x
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

LANGUAGES = ("python", "c", "go", "java", "javascript", "php", "ruby", "rust")
# What the harness imports on the way, for building images and running them.
ASIDE = ("datasets", "docker", "dotenv", "modal", "requests", "tqdm")


class _Absent(ModuleType):
    """Stands in for a package that is not installed and would not be used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _without_its_start(name: str) -> None:
    """Makes a package importable without running its `__init__`, which imports everything."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"there is no package {name!r}", name=name)
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package


def _prepare(asked: str) -> None:
    for name in ("swebench", "swebench.harness"):
        _without_its_start(name)
    for name in ASIDE if asked == "describe" else (*ASIDE, "unidiff"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = _Absent(name)


def _parsers() -> dict[str, Any]:
    modules = [importlib.import_module(f"swebench.harness.log_parsers.{language}") for language in LANGUAGES]
    return {name: found for module in modules for name, found in vars(module).items() if name.startswith("parse_log_")}


def unknown(question: Mapping[str, Any]) -> list[str]:
    """Those of the parsers asked for that this harness doesn't have."""
    return sorted({*question["parsers"]} - {*_parsers()})


def parse(question: Mapping[str, Any]) -> dict[str, str]:
    """The status of each test in a log."""
    found = _parsers()[question["parser"]](question["log"], SimpleNamespace(**question["row"]))
    return {str(name): str(getattr(status, "value", status)) for name, status in found.items()}


def describe(question: Mapping[str, Any]) -> list[dict[str, str]]:
    """What rows of the older form leave to the harness: how their tests are run and read."""
    constants = importlib.import_module("swebench.harness.constants")
    scripts = importlib.import_module("swebench.harness.test_spec.create_scripts")
    parsers = importlib.import_module("swebench.harness.log_parsers").MAP_REPO_TO_PARSER
    return [_described(row, constants.MAP_REPO_VERSION_TO_SPECS, scripts, parsers) for row in question["rows"]]


def _described(row: Mapping[str, Any], specs: Mapping[str, Any], scripts: Any, parsers: Any) -> dict[str, str]:
    repo, version = row["repo"], row["version"]
    if version not in specs.get(repo, {}):
        return {"problem": f"the harness knows no version {version!r} of {repo}"}
    known = specs[repo][version]
    lines: Sequence[str] = scripts.make_eval_script_list(
        row, known, "testbed", "/testbed", row["base_commit"], row["test_patch"]
    )
    script = "\n".join(["#!/bin/bash", "set -uxo pipefail", *lines, ""])
    return {"eval_script": script, "log_parser": parsers[repo].__name__}


def main() -> None:
    question = json.load(sys.stdin)
    answer_to, sys.stdout = sys.stdout, sys.stderr  # what the harness prints is no answer
    _prepare(question["ask"])
    answers = {"parse": parse, "unknown": unknown, "describe": describe}
    json.dump(answers[question["ask"]](question), answer_to)


if __name__ == "__main__":
    main()
