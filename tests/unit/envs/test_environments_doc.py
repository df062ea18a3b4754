"""The code in docs/environments.md runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunix_core.testing.envs import check_env
from tunix_core.types import Task

PAGE = Path(__file__).resolve().parents[3] / "docs" / "environments.md"


@pytest.fixture
def guessing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """All Python blocks of the page, as the module its spec names."""
    module = ModuleType("guessing")
    monkeypatch.setitem(sys.modules, "guessing", module)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 7
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), module.__dict__)
    return module


def test_the_page_runs_and_its_environments_pass_the_check(guessing: Any) -> None:
    guessing.test_guessing()
    words = [Task(f"w{i}", {"word": word}, gold=word[::-1]) for i, word in enumerate(("abc", "tunix"))]
    check_env(guessing.Reverse, words)
    check_env(guessing.Slow, words)
    check_env(guessing.Census, [Task("c", {"question": "q", "answer": 1})])


def test_the_page_registers_what_it_describes(guessing: Any) -> None:
    registered: list[Any] = []
    guessing.tunix_register_envs(registered.append)
    assert [spec.id for spec in registered] == ["guessing/number"]
