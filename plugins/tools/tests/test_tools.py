"""The tools, in a sandbox in memory and on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunix_tools.plugin import SPECS
from tunix_tools.text import shortened, told

from tunix_core.errors import SandboxError
from tunix_core.sandboxes import ExecResult, Sandbox, SandboxLimits, SandboxRequest
from tunix_core.sandboxes.local import LocalSandboxes
from tunix_core.testing.envs import load_target
from tunix_core.testing.sandboxes import FakeSandboxes
from tunix_core.tools import Tool, as_tool, try_tool
from tunix_core.types import ToolCall

Use = Callable[..., Awaitable[str]]


async def tools_in(sandbox: Sandbox) -> dict[str, Tool]:
    return {spec.id: as_tool(load_target(spec.target), sandbox=sandbox) for spec in SPECS}


def user(tools: dict[str, Tool]) -> Use:
    async def use(name: str, **arguments: Any) -> str:
        return (await try_tool(tools[f"tools/{name}"], ToolCall(name, arguments), 60.0))[1]

    return use


def with_sandbox(kind: str, body: Callable[[Use, Any], Awaitable[None]], **limits: int) -> None:
    async def main() -> None:
        provider: Any = FakeSandboxes() if kind == "fake" else LocalSandboxes()
        try:
            sandbox = await provider.open(SandboxRequest(limits=SandboxLimits(**limits)))
            await body(user(await tools_in(sandbox)), sandbox)
        finally:
            await provider.aclose()

    asyncio.run(main())


def test_every_tool_says_what_it_is_for() -> None:
    async def main() -> None:
        sandbox = await FakeSandboxes().open(SandboxRequest())
        for name, tool in (await tools_in(sandbox)).items():
            assert name == f"tools/{tool.name}" and tool.description
            assert tool.final == (tool.name == "submit")

    asyncio.run(main())


# ---- edit ----
@pytest.mark.parametrize("kind", ["fake", "local"])
def test_edit_changes_files_and_takes_changes_back(kind: str) -> None:
    async def body(use: Use, sandbox: Sandbox) -> None:
        assert await use("edit", action="create", path="a.py", text="one\ntwo\nthree\n") == "a.py is created."
        assert await use("edit", action="view", path="a.py") == "     1\tone\n     2\ttwo\n     3\tthree"
        assert await use("edit", action="view", path="a.py", first=2, last=2) == "     2\ttwo"
        assert "line 2" in await use("edit", action="replace", path="a.py", old="two", text="zwei")
        assert "1 more lines after line 0" in await use("edit", action="insert", path="a.py", first=0, text="null")
        await use("edit", action="insert", path="a.py", first=4, text="vier")
        assert await sandbox.read("a.py") == b"null\none\nzwei\nthree\nvier"
        for expected in (b"null\none\nzwei\nthree\n", b"one\nzwei\nthree\n", b"one\ntwo\nthree\n"):
            await use("edit", action="undo", path="a.py")
            assert await sandbox.read("a.py") == expected
        assert await use("edit", action="undo", path="a.py") == "a.py is removed again."
        assert await use("edit", action="view", path="a.py") == "Error: there is no a.py"
        assert "no change" in await use("edit", action="undo", path="a.py")

    with_sandbox(kind, body)


def test_edit_says_what_is_wrong() -> None:
    async def body(use: Use, sandbox: Sandbox) -> None:
        await sandbox.write("a.py", b"x = 1\ny = 1\n")
        await sandbox.write("dir/b.py", b"")
        wrong = {
            "is there already": {"action": "create", "path": "a.py", "text": ""},
            "2 times, in lines 1, 2": {"action": "replace", "path": "a.py", "old": " = 1", "text": ""},
            "does not stand in a.py": {"action": "replace", "path": "a.py", "old": "z", "text": ""},
            "needs `old`": {"action": "replace", "path": "a.py", "text": ""},
            "from 0 to 2": {"action": "insert", "path": "a.py", "first": 9, "text": ""},
            "has 2 lines": {"action": "view", "path": "a.py", "first": 9},
            "is a directory": {"action": "replace", "path": "dir", "old": "x", "text": ""},
            "there is no": {"action": "insert", "path": "c.py", "first": 0, "text": ""},
            "invalid arguments": {"action": "delete", "path": "a.py"},
        }
        for says, arguments in wrong.items():
            assert says in (said := await use("edit", **arguments)) and said.startswith("Error:"), said
        assert await sandbox.read("a.py") == b"x = 1\ny = 1\n"
        await sandbox.write("empty", b"")
        assert await use("edit", action="view", path="empty") == "[the file is empty]"
        assert "is there already" in await use("edit", action="create", path="empty", text="")

    with_sandbox("fake", body)


def test_edit_leaves_bytes_that_are_no_text_as_they_are() -> None:
    async def body(use: Use, sandbox: Sandbox) -> None:
        await sandbox.write("latin", b"caf\xe9 = 1\r\nx\n")
        assert "�" in await use("edit", action="view", path="latin")
        await use("edit", action="replace", path="latin", old="= 1", text="= 2")
        assert await sandbox.read("latin") == b"caf\xe9 = 2\r\nx\n"
        await sandbox.write("long", b"x" * (2 << 20))
        assert "longer than" in (said := await use("edit", action="view", path="long")) or "more than" in said

    with_sandbox("fake", body)


def test_edit_lists_a_directory() -> None:
    async def body(use: Use, sandbox: Sandbox) -> None:
        await sandbox.write("dir/below/c.py", b"")
        assert await use("edit", action="view", path="dir") == "dir\ndir/below\ndir/below/c.py"

    with_sandbox("local", body)


# ---- commands ----
def test_bash_is_one_shell() -> None:
    async def body(use: Use, _: Sandbox) -> None:
        assert await use("bash", command="mkdir d && cd d && X=1") == "[no output]"
        assert (await use("bash", command="pwd; echo $X")).endswith("/d\n1\n")
        assert await use("bash", command="echo no >&2; false") == "no\n[exit status 1]"
        assert "characters left out" in (long := await use("bash", command="seq 100000")) and len(long) < 11_000

    with_sandbox("local", body)


def test_bash_tells_of_a_timeout() -> None:
    async def main() -> None:
        from tunix_tools.bash import bash

        sandbox = await FakeSandboxes().open(SandboxRequest())
        tool = bash.bind(sandbox, timeout_s=0.05)
        assert await tool.fn(command="sleep 60") == "[killed after 0.05 s]"

    asyncio.run(main())


def test_python_runs_a_program() -> None:
    async def body(use: Use, _: Sandbox) -> None:
        assert await use("python", code="import os\nprint(6 * 7, os.path.basename(os.getcwd())[:6])") == "42 tunix-\n"
        assert "ZeroDivisionError" in (said := await use("python", code="1/0")) and said.endswith("[exit status 1]")

    with_sandbox("local", body)


def test_search_finds_lines() -> None:
    async def body(use: Use, sandbox: Sandbox) -> None:
        await sandbox.write("src/a.py", b"def f():\n    return 1\n" + b"y" * 400 + b"\n")
        await sandbox.write("src/b.txt", b"def g\n")
        await sandbox.write(".git/c.py", b"def hidden\n")
        await sandbox.write("many", b"hit\n" * 150)
        found = await use("search", pattern="^def ")
        assert sorted(found.splitlines()) == ["./src/a.py:1:def f():", "./src/b.txt:1:def g"]
        assert await use("search", pattern="def", path="src", files="*.py") == "src/a.py:1:def f():"
        assert await use("search", pattern="nowhere") == "No line matches."
        assert (await use("search", pattern="hit")).endswith("[50 more lines match; narrow the pattern]")
        assert len(await use("search", pattern="yy")) < 400
        assert (await use("search", pattern="(")).startswith("Error:")
        assert await use("search", pattern="-e") == "No line matches."

    with_sandbox("local", body)


def test_submit_gives_the_diff_of_the_work_tree() -> None:
    async def body(use: Use, sandbox: Sandbox) -> None:
        git = "git -c user.name=a -c user.email=a@b"
        await sandbox.write("a.txt", b"one\n")
        assert (await use("submit")).startswith("Error: the changes can't be collected")
        await sandbox.exec(["sh", "-c", f"git init -q && git add -A && {git} commit -qm first"], timeout_s=60)
        await sandbox.write("a.txt", b"two\n")
        await sandbox.write("new.bin", bytes(range(256)))
        diff = await use("submit")
        assert "-one\n+two\n" in diff and "GIT binary patch" in diff
        from tunix_tools.submit import submit

        short = submit.bind(sandbox, max_bytes=100)
        _, text = await try_tool(short, ToolCall("submit"), 60.0)
        assert "more than 100 bytes" in text

    with_sandbox("local", body)


def test_a_lost_sandbox_is_no_observation() -> None:
    async def body(use: Use, sandbox: Any) -> None:
        sandbox.lost = True
        for name, arguments in (("bash", {"command": "ls"}), ("edit", {"action": "view", "path": "a"})):
            with pytest.raises(SandboxError):
                await use(name, **arguments)

    with_sandbox("fake", body)


# ---- text ----
@given(st.text(max_size=200), st.integers(2, 100))
def test_what_is_shortened_keeps_both_ends(text: str, most: int) -> None:
    short = shortened(text, most)
    if len(text) <= most:
        assert short == text
    else:
        assert short.startswith(text[: most // 2]) and short.endswith(text[-(most // 2) :])
        assert f"{len(text) - 2 * (most // 2)} characters left out" in short


@given(st.binary(max_size=100))
def test_whatever_a_command_writes_can_be_shown(data: bytes) -> None:
    text = told(ExecResult(0, data), 1.0)
    text.encode()
    assert all(c.isprintable() or c in "\n\t" for c in text) and text
