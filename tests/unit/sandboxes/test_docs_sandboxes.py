"""What docs/sandboxes.md shows is what happens."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tunix_core.envs import make_opener
from tunix_core.sandboxes.local import LocalSandboxes
from tunix_core.specs import load_target
from tunix_core.types import Message, ToolCall

PAGE = Path(__file__).parents[3] / "docs" / "sandboxes.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    return names


def test_the_environment_of_the_page_is_played(
    page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fix = {"action": "replace", "path": "sums.py", "old": "a - b", "text": "a + b"}
    turns = (("bash", {"command": "cat sums.py"}), ("edit", fix), ("finish", {"answer": "done"}))

    async def main() -> list[Any]:
        local = LocalSandboxes()
        find_tool = {f"tools/{n}": load_target(f"tunix_tools.{n}:{n}") for n in ("bash", "edit", "search")}.__getitem__
        envs = make_opener(page["REPAIR"], lambda _: page["Repair"], sandboxes=local, find_tool=find_tool)
        handle = await envs.open(page["make_tasks"]("train", 0).get(0))
        try:
            await handle.reset(0)
            calls = [Message("assistant", tool_calls=(ToolCall(name, arguments),)) for name, arguments in turns]
            return [await handle.step(call) for call in calls]
        finally:
            await handle.close()
            await envs.aclose()
            await local.aclose()

    shown, _, last = asyncio.run(main())
    assert "return a - b" in shown.observation[0].text
    assert (last.reward, last.terminated) == (1.0, True)
