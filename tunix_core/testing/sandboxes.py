"""`check_sandbox`: does a kind of sandbox keep the promises every kind makes?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tunix_core.errors import SandboxError
from tunix_core.sandboxes import Sandbox, Sandboxes, SandboxRequest
from tunix_core.testing.fake_sandboxes import Call, FakeSandbox, FakeSandboxes, FakeShell

TIMEOUT_S = 60.0


async def check_sandbox(provider: Sandboxes, request: SandboxRequest | None = None) -> None:
    """Opens sandboxes and checks what every kind promises of commands, shells, files, snapshots and closing.

    It runs only true, false, echo, cat, pwd, printenv, sleep and `head -c N /dev/zero`. The provider stays open.

    Args:
        request: what to open; needed where the kind wants an image. Its `output_bytes` is made 4096.

    Raises:
        AssertionError: a promise is broken; the message says which.
    """
    request = request or SandboxRequest()
    request = replace(
        request, limits=replace(request.limits, output_bytes=4096), env=(*request.env, ("TUNIX_CHECK", "given"))
    )
    assert await provider.start(), "start must say what holds"
    sandbox = await provider.open(request)
    try:
        for check in _CHECKS:
            try:
                await check(sandbox)
            except AssertionError:
                raise
            except Exception as error:
                name = check.__name__.removeprefix("_").replace("_", " ")
                raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        await _sandboxes_are_apart(provider, request, sandbox)
        await _a_snapshot_opens(provider, request, sandbox)
    finally:
        await sandbox.close()
    await _a_closed_one_refuses(sandbox)


async def _commands_have_status_and_output(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["echo", "two  words", "$HOME"], timeout_s=TIMEOUT_S)
    assert (result.exit_code, result.stdout) == (0, b"two  words $HOME\n"), f"words must pass as they are: {result}"
    assert result.ok and not result.timed_out and not result.truncated, f"nothing went wrong: {result}"
    result = await sandbox.exec(["false"], timeout_s=TIMEOUT_S)
    assert result.exit_code == 1 and not result.ok, f"the exit status is the command's: {result}"
    result = await sandbox.exec(["tunix-no-such-command"], timeout_s=TIMEOUT_S)
    assert result.exit_code == 127 and result.stderr, f"an unknown command is a result that says so: {result}"


async def _stdin_is_read_to_its_end(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 8
    echoed = await sandbox.exec(["cat"], stdin=data, timeout_s=TIMEOUT_S)
    _check_same(echoed.stdout, data, "stdin must pass as it is")
    empty = await sandbox.exec(["cat"], timeout_s=TIMEOUT_S)
    assert (empty.exit_code, empty.stdout) == (0, b""), f"without stdin, a command reads nothing: {empty}"


async def _directory_and_environment(sandbox: Sandbox) -> None:
    here = await sandbox.exec(["pwd"], timeout_s=TIMEOUT_S)
    assert here.stdout.decode().strip() == sandbox.workdir, f"commands start in workdir={sandbox.workdir}: {here}"
    await sandbox.write("inner/file", b"")
    there = await sandbox.exec(["pwd"], cwd="inner", timeout_s=TIMEOUT_S)
    assert there.stdout.decode().strip() == f"{sandbox.workdir}/inner", f"cwd is relative to workdir: {there}"
    for env, expected in ((None, b"given\n"), ({"TUNIX_CHECK": "another"}, b"another\n")):
        result = await sandbox.exec(["printenv", "TUNIX_CHECK"], env=env, timeout_s=TIMEOUT_S)
        assert result.stdout == expected, f"env goes over the request's: {result}"


async def _time_is_bounded(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["sleep", "3600"], timeout_s=0.5)
    assert result.timed_out and result.exit_code is None, f"a command out of time has no exit status: {result}"
    assert (await sandbox.exec(["true"], timeout_s=TIMEOUT_S)).ok, "the sandbox goes on after a timeout"


async def _cancelling_ends_a_command(sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(sandbox.exec(["sleep", "3600"], timeout_s=3600))
    await asyncio.wait({running}, timeout=0.5)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert running.cancelled(), "a cancelled exec must end"
    assert (await sandbox.exec(["true"], timeout_s=TIMEOUT_S)).ok, "the sandbox goes on after a cancelled command"


async def _output_is_bounded(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["head", "-c", "1000000", "/dev/zero"], timeout_s=TIMEOUT_S)
    assert result.ok, f"a long output is no failure: {result}"
    assert len(result.stdout) < 8192, f"output_bytes=4096 is kept, not {len(result.stdout)}"
    assert result.truncated and result.dropped_stdout == 1_000_000 - 4096, f"what is dropped is counted: {result}"


async def _commands_run_at_the_same_time(sandbox: Sandbox) -> None:
    work = [sandbox.exec(["echo", str(number)], timeout_s=TIMEOUT_S) for number in range(4)]
    results = await asyncio.gather(*work)
    assert [r.stdout for r in results] == [b"0\n", b"1\n", b"2\n", b"3\n"], f"each has its own output: {results}"


async def _files_are_read_and_written(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 1024
    await sandbox.write("new/deep/file.bin", data)
    _check_same(await sandbox.read("new/deep/file.bin"), data, "a file's bytes stay as they are")
    _check_same(await sandbox.read(f"{sandbox.workdir}/new/deep/file.bin"), data, "paths may be absolute")
    await sandbox.write("new/deep/file.bin", b"shorter")
    assert (await sandbox.exec(["cat", "new/deep/file.bin"], timeout_s=TIMEOUT_S)).stdout == b"shorter"
    for error, path, most in (
        (FileNotFoundError, "no-such-file", 10),
        (IsADirectoryError, "new", 10),
        (ValueError, "new/deep/file.bin", 3),
    ):
        await _raises(error, sandbox.read(path, max_bytes=most), f"reading {path} with max_bytes={most}")
    await _raises(IsADirectoryError, sandbox.write("new", b""), "writing to a directory")


def _check_same(found: bytes, expected: bytes, promise: str) -> None:
    same = found == expected  # not in the assertion: pytest would spell the difference out, for minutes
    assert same, f"{promise}: {len(expected)} bytes went in, {len(found)} came back, or others"


async def _files_are_carried(sandbox: Sandbox) -> None:
    with TemporaryDirectory() as name:
        here = Path(name)
        for path, content in (("in/a.txt", b"a"), ("in/below/b.txt", b"b")):
            (here / path).parent.mkdir(parents=True, exist_ok=True)
            (here / path).write_bytes(content)
        await sandbox.copy_in(here / "in", "carried")
        assert await sandbox.read("carried/below/b.txt") == b"b", "copy_in takes a directory's content"
        await sandbox.copy_in(here / "in" / "a.txt", "carried/renamed.txt")
        assert await sandbox.read("carried/renamed.txt") == b"a", "copy_in takes a file to the path given"
        await sandbox.copy_out("carried", here / "out")
        found = sorted(str(p.relative_to(here / "out")) for p in (here / "out").rglob("*") if p.is_file())
        assert found == ["a.txt", "below/b.txt", "renamed.txt"], f"copy_out gives a directory's content: {found}"
        await sandbox.copy_out("carried/a.txt", here / "single.txt")
        assert (here / "single.txt").read_bytes() == b"a", "copy_out gives a file"
        await _raises(
            FileNotFoundError, sandbox.copy_out("no-such-file", here / "none"), "copying out what isn't there"
        )


async def _a_shell_lives_on(sandbox: Sandbox) -> None:
    await sandbox.write("dir/file", b"")
    shell = await sandbox.shell()
    try:
        assert (await shell.run("cd dir", timeout_s=TIMEOUT_S)).exit_code == 0
        here = await shell.run("pwd", timeout_s=TIMEOUT_S)
        assert here.stdout.decode().strip() == f"{sandbox.workdir}/dir", f"a shell keeps its directory: {here}"
        assert (await shell.run("false", timeout_s=TIMEOUT_S)).exit_code == 1, "a shell gives the command's status"
        late = await shell.run("sleep 3600", timeout_s=0.5)
        assert late.timed_out and late.exit_code is None, f"a command of a shell is bounded in time: {late}"
        assert (await shell.run("echo on", timeout_s=TIMEOUT_S)).stdout == b"on\n", "a shell goes on after a timeout"
    finally:
        await shell.close()
        await shell.close()


async def _sandboxes_are_apart(provider: Sandboxes, request: SandboxRequest, sandbox: Sandbox) -> None:
    await sandbox.write("mine", b"")
    other = await provider.open(request)
    try:
        await _raises(FileNotFoundError, other.read("mine"), "reading another sandbox's file")
    finally:
        await other.close()


async def _a_snapshot_opens(provider: Sandboxes, request: SandboxRequest, sandbox: Sandbox) -> None:
    await sandbox.write("kept/file", b"before")
    image = await sandbox.snapshot()
    await sandbox.write("kept/file", b"after")
    other = await provider.open(replace(request, image=image))
    try:
        assert await other.read("kept/file") == b"before", "a snapshot holds the files as they were"
        await other.write("kept/file", b"other")
        assert await sandbox.read("kept/file") == b"after", "what opens from a snapshot is apart"
    finally:
        await other.close()


async def _a_closed_one_refuses(sandbox: Sandbox) -> None:
    await sandbox.close()
    assert sandbox.closed, "closed must be true after close"
    await _raises(SandboxError, sandbox.exec(["true"], timeout_s=1), "exec in a closed sandbox")
    await _raises(SandboxError, sandbox.read("file"), "read in a closed sandbox")


async def _raises(expected: type[Exception], work: Awaitable[object], what: str) -> None:
    try:
        await work
    except expected:
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise {expected.__name__}, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} must raise {expected.__name__}, and raised nothing")


_CHECKS: tuple[Callable[[Sandbox], Awaitable[None]], ...] = (
    _commands_have_status_and_output,
    _stdin_is_read_to_its_end,
    _directory_and_environment,
    _time_is_bounded,
    _cancelling_ends_a_command,
    _output_is_bounded,
    _commands_run_at_the_same_time,
    _files_are_read_and_written,
    _files_are_carried,
    _a_shell_lives_on,
)

__all__ = ["Call", "FakeSandbox", "FakeSandboxes", "FakeShell", "check_sandbox"]
