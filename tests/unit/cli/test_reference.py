"""The generated reference is up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["config.md", "commands.md"])
def test_a_page_says_what_the_code_says(page: str) -> None:
    written = (DOCS / "reference" / page).read_text(encoding="utf-8")
    assert written == generator().render()[page], "run `make docs`"


def test_the_pages_hold_keys_and_commands() -> None:
    pages = generator().render()
    assert '| `mode` | `"in_flight"` or `"drain"` or `"on_policy"` | `"in_flight"` |' in pages["config.md"]
    assert "## `[suite.sampling]`" in pages["config.md"]
    assert "tunix eval [OPTIONS] ENV" in pages["commands.md"]
