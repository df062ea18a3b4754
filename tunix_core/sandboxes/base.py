"""What every kind of sandbox does in the same way, given how it starts a process."""

from __future__ import annotations

import asyncio
import io
import posixpath
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from tunix_core.contracts import ExecResult, SandboxRequest
from tunix_core.errors import SandboxError
from tunix_core.sandboxes.archive import packed, pieces_of_file, unpack
from tunix_core.sandboxes.output import Bounded, Sink, Whole
from tunix_core.sandboxes.running import NotStarted, Running, Stream, pieces_of, wrapped
from tunix_core.sandboxes.shell import BashShell, shell_argv

Pieces = Callable[[], AsyncIterator[bytes]]
START_S = 60.0  # seconds for a process to start, under load
FILES_S = 300.0  # seconds for files to be carried in or out
_ERRORS = {44: FileNotFoundError, 45: IsADirectoryError, 46: PermissionError}
_READ = """[ -e "$1" ] || exit 44; [ -d "$1" ] && exit 45; [ -r "$1" ] || exit 46
[ -f "$1" ] || { echo "not a plain file" >&2; exit 47; }; exec head -c "$2" -- "$1" """
_WRITE = """[ -d "$1" ] && exit 45; mkdir -p -- "$(dirname -- "$1")" || exit 46
[ -e "$1" ] && [ ! -w "$1" ] && exit 46; cat > "$1" """
_TAKE_IN = 'mkdir -p -- "$1" || exit 46; exec tar -xf - -C "$1"'
_GIVE_OUT = """[ -e "$1" ] || exit 44; if [ -d "$1" ]; then echo directory >&2; cd -- "$1" && exec tar -cf - .; fi
cd -- "$(dirname -- "$1")" && exec tar -chf - -- "$(basename -- "$1")" """


class StreamSandbox(ABC):
    """A sandbox whose processes are streams; satisfies `contracts.Sandbox`."""

    def __init__(self, request: SandboxRequest, workdir: str) -> None:
        self.request, self.workdir = request, workdir
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._shells: list[BashShell] = []

    # ---- written by the kind -------------------------------------------------------------------------
    @abstractmethod
    async def start(self, argv: Sequence[str], user: str, env: Mapping[str, str]) -> Stream:
        """Starts a process at the head of a session of its own. Raises SandboxError."""

    @abstractmethod
    async def kill(self, pid: int, user: str) -> None:
        """Kills the process group and session of `pid`, as seen inside. Raises SandboxError."""

    async def make_room(self) -> bool:
        """Called when a process can't be started. Whether it ended something, so that trying again may help."""
        return False

    @abstractmethod
    async def snapshot(self) -> str: ...

    @abstractmethod
    async def remove(self) -> None:
        """Ends everything in it, and it. Called once; raises nothing."""

    def inside(self, path: str) -> str:
        """The absolute path that `path` means to a command."""
        return posixpath.normpath(posixpath.join(self.workdir, path))

    # ---- the contract --------------------------------------------------------------------------------
    @property
    def closed(self) -> bool:
        return self._closed

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
        limit = self.request.limits.output_bytes
        pieces = None if stdin is None else partial(pieces_of, stdin)
        return await self._run(command, timeout_s, Bounded(limit), Bounded(limit), pieces, user=user, cwd=cwd, env=env)

    async def shell(self) -> BashShell:
        self._check()
        user, limit = self.request.user, self.request.limits.output_bytes
        shell = BashShell(
            lambda: self.start(shell_argv(self.workdir), user, {}),
            lambda pid: self.kill(pid, user),
            self.make_room,
            limit,
            START_S,
        )
        self._shells.append(shell)
        return shell

    async def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        content, where = io.BytesIO(), self.inside(path)
        sink = Whole(content, max_bytes)
        await self._file_command(_READ, [where, str(max_bytes + 1)], sink)
        if sink.dropped:
            raise ValueError(f"{where} is longer than max_bytes={max_bytes}")
        return content.getvalue()

    async def write(self, path: str, data: bytes) -> None:
        await self._file_command(_WRITE, [self.inside(path)], Bounded(4096), partial(pieces_of, data))

    async def copy_in(self, source: Path, path: str) -> None:
        where = self.inside(path)
        directory = await asyncio.to_thread(source.is_dir)
        into = where if directory else posixpath.dirname(where)
        with closing(await asyncio.to_thread(packed, source, posixpath.basename(where))) as file:
            await self._file_command(_TAKE_IN, [into], Bounded(4096), partial(pieces_of_file, file))

    async def copy_out(self, path: str, target: Path) -> None:
        where, limit = self.inside(path), self.request.limits.disk_mb << 20
        with closing(TemporaryFile()) as file:
            sink = Whole(file, limit)
            said = await self._file_command(_GIVE_OUT, [where], sink)
            if sink.dropped:
                raise ValueError(f"{where} is more than limits.disk_mb={self.request.limits.disk_mb} MB")
            only = None if said.startswith(b"directory\n") else posixpath.basename(where)
            await asyncio.to_thread(unpack, file, target, only)

    async def close(self) -> None:
        """Ends it once, whoever calls; every caller waits until it is gone."""
        self._closed = True
        self._closing = self._closing or asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for shell in self._shells:
            await shell.drop()
        await self.remove()

    # ---- below ---------------------------------------------------------------------------------------
    async def _run(
        self,
        command: Sequence[str],
        timeout_s: float,
        out: Sink | None = None,
        err: Sink | None = None,
        pieces: Pieces | None = None,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        argv = wrapped(command, self.inside(cwd or "."))
        self._check()
        who = user or self.request.user
        sinks = (out or Bounded(4096), err or Bounded(4096))

        async def once() -> ExecResult:
            stream = await self.start(argv, who, env or {})
            running = Running(stream, *sinks, lambda pid: self.kill(pid, who))
            return await running.result(pieces() if pieces else None, timeout_s, START_S)

        try:
            return await once()
        except NotStarted:
            if not await self.make_room():
                raise
        for sink in sinks:
            sink.clear()  # why it did not start is no output of the command
        return await once()

    async def _file_command(
        self, script: str, arguments: Sequence[str], out: Sink, pieces: Pieces | None = None
    ) -> bytes:
        """Runs a script about the file `arguments[0]` and gives its stderr; its exit status becomes an error."""
        result = await self._run(_script(script, arguments), FILES_S, out, None, pieces)
        if result.timed_out:
            raise SandboxError(f"carrying {arguments[0]} took longer than {FILES_S:g} s")
        if not result.ok:
            said = result.stderr.decode(errors="replace").strip()[:500]
            error = _ERRORS.get(result.exit_code or 0, PermissionError if "ermission denied" in said else OSError)
            raise error(f"{arguments[0]}: {said}" if said else arguments[0])
        return result.stderr

    def _check(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed")


def _script(script: str, arguments: Sequence[str]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script, "sh", *arguments)
