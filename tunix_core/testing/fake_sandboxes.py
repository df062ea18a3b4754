"""Sandboxes in memory: files are a dict, and commands are answered by a script."""

from __future__ import annotations

import asyncio
import inspect
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tunix_core.errors import SandboxError
from tunix_core.sandboxes import ExecResult, SandboxRequest
from tunix_core.sandboxes.output import Bounded


@dataclass(frozen=True, slots=True)
class Call:
    """One command that a fake sandbox was asked to run. A shell's command is ("bash", "-c", command)."""

    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    user: str | None = None
    timeout_s: float = 0.0

    @property
    def text(self) -> str:
        """The command of a shell, or the words joined."""
        return self.command[2] if self.command[:2] == ("bash", "-c") else shlex.join(self.command)


Answer = ExecResult | str | bytes | None
Script = Callable[["FakeSandbox", Call], Answer | Awaitable[Answer]]


class FakeSandboxes:
    """Opens sandboxes in memory; satisfies `contracts.Sandboxes`.

    Args:
        script: (sandbox, call) -> an ExecResult, or what the command prints; None leaves it to a handful of
            built-in commands: true, false, echo, cat, pwd, printenv, sleep, rm, and `head -c N /dev/zero`.
            It may be `async`, and may change `sandbox.files`.
        files: what the images hold: image -> {path: content}.
        isolates: what it says of itself.
        fail: raised at every `open`.

    Attributes:
        opened: every sandbox, in order.
        calls: every command of all sandboxes, in order.
    """

    def __init__(
        self,
        script: Script | None = None,
        files: Mapping[str, Mapping[str, bytes]] | None = None,
        *,
        isolates: bool = True,
        fail: SandboxError | None = None,
    ) -> None:
        self.script, self.isolates, self.fail = script, isolates, fail
        self.images = {image: dict(content) for image, content in (files or {}).items()}
        self.opened: list[FakeSandbox] = []
        self.calls: list[Call] = []

    async def start(self) -> str:
        return "sandboxes in memory"

    async def open(self, request: SandboxRequest) -> FakeSandbox:
        if self.fail is not None:
            raise self.fail
        sandbox = FakeSandbox(self, request, dict(self.images.get(request.image, {})))
        self.opened.append(sandbox)
        return sandbox

    async def identify(self, image: str) -> str:
        return image

    def used_images(self) -> Mapping[str, str]:
        return {sandbox.request.image: sandbox.request.image for sandbox in self.opened}

    async def aclose(self) -> None:
        for sandbox in self.opened:
            await sandbox.close()

    def statistics(self) -> Mapping[str, float]:
        return {"opened": len(self.opened), "open": sum(not sandbox.closed for sandbox in self.opened)}


class FakeSandbox:
    """One sandbox in memory; satisfies `contracts.Sandbox`. `files` maps absolute paths to contents."""

    def __init__(self, provider: FakeSandboxes, request: SandboxRequest, files: dict[str, bytes]) -> None:
        self._provider, self.request, self.files = provider, request, files
        self.workdir = request.workdir
        self.closed = False
        self.lost = False  # set it, and the sandbox fails from then on

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        variables = {**dict(self.request.env), **(env or {})}
        return await self.answer(Call(tuple(command), self.path(cwd or "."), variables, stdin, user, timeout_s))

    async def answer(self, call: Call) -> ExecResult:
        """Runs one command, as the script or the built-in ones answer it."""
        self._check()
        self._provider.calls.append(call)
        try:
            async with asyncio.timeout(call.timeout_s):
                return self._bounded(await self._answered(call))
        except TimeoutError:
            return ExecResult(None, timed_out=True, seconds=call.timeout_s)

    async def _answered(self, call: Call) -> ExecResult:
        given = self._provider.script(self, call) if self._provider.script else None
        found = await given if inspect.isawaitable(given) else given
        if isinstance(found, str | bytes):
            return ExecResult(0, found.encode() if isinstance(found, str) else found)
        return found if found is not None else await _built_in(self, call)

    def _bounded(self, result: ExecResult) -> ExecResult:
        out, err = Bounded(self.request.limits.output_bytes), Bounded(self.request.limits.output_bytes)
        out.add(result.stdout)
        err.add(result.stderr)
        kept = {"stdout": out.value(), "stderr": err.value()}
        return replace(result, **kept, dropped_stdout=out.dropped, dropped_stderr=err.dropped)

    async def shell(self) -> FakeShell:
        self._check()
        return FakeShell(self)

    async def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        self._check()
        whole = self.path(path)
        if whole not in self.files:
            error = IsADirectoryError if self._inside(whole) else FileNotFoundError
            raise error(whole)
        if len(self.files[whole]) > max_bytes:
            raise ValueError(f"{whole} has {len(self.files[whole])} bytes, more than max_bytes={max_bytes}")
        return self.files[whole]

    async def write(self, path: str, data: bytes) -> None:
        self._check()
        whole = self.path(path)
        if self._inside(whole):
            raise IsADirectoryError(whole)
        self.files[whole] = bytes(data)

    async def copy_in(self, source: Path, path: str) -> None:
        self._check()
        self.files.update(_contents(source, self.path(path)))

    async def copy_out(self, path: str, target: Path) -> None:
        self._check()
        whole = self.path(path)
        found = (
            {whole: target} if whole in self.files else {p: target / p[len(whole) + 1 :] for p in self._inside(whole)}
        )
        if not found:
            raise FileNotFoundError(whole)
        for name, file in found.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.files[name])

    async def snapshot(self) -> str:
        self._check()
        name = f"fake-snapshot-{len(self._provider.images)}"
        self._provider.images[name] = dict(self.files)
        return name

    async def close(self) -> None:
        self.closed = True

    def path(self, path: str) -> str:
        """The absolute path that `path` means."""
        return posixpath.normpath(posixpath.join(self.workdir, path))

    def _inside(self, directory: str) -> list[str]:
        return [name for name in self.files if name.startswith(f"{directory.rstrip('/')}/")]

    def _check(self) -> None:
        if self.closed or self.lost:
            raise SandboxError(f"the sandbox is {'closed' if self.closed else 'lost'}")


class FakeShell:
    """A shell of a fake sandbox: `cd` is kept, everything else is the script's or built in."""

    def __init__(self, sandbox: FakeSandbox) -> None:
        self._sandbox, self.cwd = sandbox, sandbox.workdir

    async def run(self, command: str, *, timeout_s: float) -> ExecResult:
        if command.startswith("cd "):
            self.cwd = posixpath.normpath(posixpath.join(self.cwd, command[3:].strip()))
            return ExecResult(0)
        return await self._sandbox.answer(Call(("bash", "-c", command), self.cwd, timeout_s=timeout_s))

    async def close(self) -> None:
        pass


async def _built_in(sandbox: FakeSandbox, call: Call) -> ExecResult:
    name, *arguments = shlex.split(call.text) if call.command[0] == "bash" else call.command
    found: Any = _BUILT_IN.get(name)
    if found is None:
        return ExecResult(127, stderr=f"{name}: command not found\n".encode())
    result = found(sandbox, call, arguments)
    return await result if inspect.isawaitable(result) else result


def _cat(sandbox: FakeSandbox, call: Call, arguments: list[str]) -> ExecResult:
    if not arguments:
        return ExecResult(0, call.stdin or b"")
    names = [posixpath.normpath(posixpath.join(call.cwd, name)) for name in arguments]
    missing = [name for name in names if name not in sandbox.files]
    if missing:
        return ExecResult(1, stderr=f"cat: {missing[0]}: No such file or directory\n".encode())
    return ExecResult(0, b"".join(sandbox.files[name] for name in names))


def _printenv(_: FakeSandbox, call: Call, arguments: list[str]) -> ExecResult:
    value = call.env.get(arguments[0]) if arguments else None
    return ExecResult(1) if value is None else ExecResult(0, f"{value}\n".encode())


async def _sleep(_: FakeSandbox, call: Call, arguments: list[str]) -> ExecResult:
    await asyncio.sleep(float(arguments[0]))
    return ExecResult(0)


def _rm(sandbox: FakeSandbox, call: Call, arguments: list[str]) -> ExecResult:
    for name in arguments:
        sandbox.files.pop(posixpath.normpath(posixpath.join(call.cwd, name)), None)
    return ExecResult(0)


_BUILT_IN: Mapping[str, Any] = {
    "true": lambda *_: ExecResult(0),
    "false": lambda *_: ExecResult(1),
    "echo": lambda _, __, arguments: ExecResult(0, f"{' '.join(arguments)}\n".encode()),
    "pwd": lambda _, call, __: ExecResult(0, f"{call.cwd}\n".encode()),
    "head": lambda _, __, arguments: ExecResult(0, bytes(int(arguments[1]))),
    "cat": _cat,
    "printenv": _printenv,
    "sleep": _sleep,
    "rm": _rm,
}


def _contents(source: Path, path: str) -> dict[str, bytes]:
    """A file, or the files of a directory, by the path they get."""
    found = {source: path} if source.is_file() else {p: f"{path}/{p.relative_to(source)}" for p in source.rglob("*")}
    return {name: file.read_bytes() for file, name in found.items() if file.is_file()}
