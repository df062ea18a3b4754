"""Sandboxes in memory and on this machine keep the same promises; what is on this machine is cleared."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tunix_core.contracts import ExecResult
from tunix_core.errors import SandboxError
from tunix_core.sandboxes import SandboxLimits, SandboxRequest
from tunix_core.sandboxes.local import MARK, LocalSandbox, LocalSandboxes, clean, find
from tunix_core.sandboxes.owner import Owner, environment_of, processes, started_at
from tunix_core.testing.sandboxes import Call, FakeSandbox, FakeSandboxes, check_sandbox


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def with_local(body: Callable[[LocalSandbox], Awaitable[None]], **limits: int) -> None:
    async def main() -> None:
        sandboxes = LocalSandboxes()
        try:
            await body(await sandboxes.open(SandboxRequest(limits=SandboxLimits(**limits))))
        finally:
            await sandboxes.aclose()

    asyncio.run(main())


def test_local_keeps_the_promises_of_every_sandbox(tmp_path: Path) -> None:
    async def main() -> None:
        sandboxes = LocalSandboxes()
        try:
            await check_sandbox(sandboxes)
        finally:
            await sandboxes.aclose()

    asyncio.run(main())
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_the_fake_keeps_the_promises_of_every_sandbox() -> None:
    asyncio.run(check_sandbox(FakeSandboxes()))


class Forgetful(FakeSandbox):
    async def write(self, path: str, data: bytes) -> None:
        await super().write(path, data.strip(b"\0"))


class Deaf(FakeSandbox):
    async def close(self) -> None:
        pass


class Wordless(FakeSandbox):
    async def exec(self, command: Sequence[str], **how: Any) -> ExecResult:
        return await super().exec(" ".join(command).split(), **how)


@pytest.mark.parametrize(
    ("broken", "says"),
    [(Forgetful, "bytes stay as they are"), (Deaf, "closed must be true"), (Wordless, "words must pass as they are")],
)
def test_the_check_finds_a_sandbox_that_breaks_its_word(broken: type[FakeSandbox], says: str) -> None:
    class Provider(FakeSandboxes):
        async def open(self, request: SandboxRequest) -> FakeSandbox:
            return broken(self, request, dict(self.images.get(request.image, {})))

    with pytest.raises(AssertionError, match=says):
        asyncio.run(check_sandbox(Provider()))


def test_it_says_plainly_that_it_does_not_isolate(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        sandboxes = LocalSandboxes()
        assert not sandboxes.isolates
        said = await sandboxes.start()
        assert "does not isolate" in said and said == await sandboxes.start()
        await sandboxes.aclose()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [r for r in caplog.records if "does not isolate" in r.getMessage()]


def test_closing_ends_also_what_ran_away() -> None:
    marks: list[str] = []

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["sh", "-c", f"setsid sleep 600 & echo ${MARK}"], timeout_s=30)
        marks.append(result.stdout.decode().strip())
        assert any(marks[0].encode() in environment_of(pid) for pid in processes())
        await sandbox.close()
        assert not any(marks[0].encode() in environment_of(pid) for pid in processes())

    with_local(body)
    assert marks[0]


def test_the_trainers_environment_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")

    async def body(sandbox: LocalSandbox) -> None:
        assert b"s3cret" not in (await sandbox.exec(["env"], timeout_s=30)).stdout

    with_local(body)


def test_files_and_memory_are_limited() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        long = await sandbox.exec(["sh", "-c", "trap '' XFSZ; head -c 2000000 /dev/zero > long"], timeout_s=30)
        assert b"File too large" in long.stderr
        eats = await sandbox.exec([sys.executable, "-c", "bytearray(1 << 30)"], timeout_s=30)
        assert b"MemoryError" in eats.stderr

    with_local(body, file_mb=1, memory_mb=512)


def test_a_shell_keeps_what_a_shell_keeps() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        shell = await sandbox.shell()

        async def said(command: str) -> str:
            return (await shell.run(command, timeout_s=30)).stdout.decode()

        await said("X=5; f() { echo f$1; }; export Y=6")
        assert await said("echo $X; f 3; printenv Y") == "5\nf3\n6\n"
        assert await said("cat; echo 'it'\"'\"'s'\necho two >&2") == "it's\ntwo\n"
        assert "sleep 600" in await said("sleep 600 & jobs")
        assert await said("printf 'no newline'") == "no newline"
        ended = await shell.run("echo bye; exit 7", timeout_s=30)
        assert (ended.exit_code, ended.stdout, ended.timed_out) == (7, b"bye\n", False)
        assert await said("echo ${X:-gone}") == "gone\n"
        assert (await shell.run("a\0b", timeout_s=30)).exit_code == 2
        await shell.close()
        with pytest.raises(SandboxError, match="closed"):
            await said("echo")

    with_local(body)


def test_only_what_dead_runs_left_is_cleared(tmp_path: Path) -> None:
    me = Owner.of_this_process()
    gone = Owner(me.host, me.pid, me.started + 1)
    for name in (f"tunix-sandbox-{me.file_name}-a", f"tunix-sandbox-{gone.file_name}-b"):
        (tmp_path / name).mkdir()
    left = subprocess.Popen(["sleep", "600"], env={MARK: f"{gone}#tunix-sandbox-b"})
    try:
        assert sorted(each.state for each in find()) == ["live", "orphan"]
        assert [each.id for each in clean()] == [str(tmp_path / f"tunix-sandbox-{gone.file_name}-b")]
        assert [each.state for each in find()] == ["live"]
        assert left.wait(30) == -9
    finally:
        left.kill()
        left.wait()


def test_an_owner_is_one_process_for_good() -> None:
    me = Owner.of_this_process()
    assert me.alive and me.here and Owner.parse(str(me)) == me
    assert Owner.of_file_name(f"{me.file_name}-x1y2") == me
    assert not Owner(me.host, me.pid, me.started + 1).alive, "the number was given to another process"
    assert Owner("another-machine", 1, 1).alive, "who is elsewhere can't be seen, and is left alone"
    assert Owner.parse("nonsense") is None and Owner.of_file_name("nonsense") is None
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert started_at(child.pid) is None, "one that is dead and not buried is dead"
    child.wait()


def test_a_fake_is_scripted_and_remembers() -> None:
    def script(sandbox: FakeSandbox, call: Call) -> str | None:
        if call.text == "make test":
            sandbox.files["/workspace/report"] = b"ok"
            return "1 passed\n"
        return None

    async def main() -> None:
        sandboxes = FakeSandboxes(script, {"image": {"/workspace/a": b"from the image"}})
        sandbox = await sandboxes.open(SandboxRequest("image"))
        assert await sandbox.read("a") == b"from the image"
        assert (await (await sandbox.shell()).run("make test", timeout_s=1)).stdout == b"1 passed\n"
        assert await sandbox.read("report") == b"ok"
        assert [call.text for call in sandboxes.calls] == ["make test"]
        sandbox.lost = True
        with pytest.raises(SandboxError, match="lost"):
            await sandbox.read("a")

    asyncio.run(main())
