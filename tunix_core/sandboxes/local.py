"""Commands on this machine, in a temporary directory: for people without a container engine. Does not isolate."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from tunix_core.contracts import SandboxRequest
from tunix_core.errors import SandboxError
from tunix_core.sandboxes.base import StreamSandbox
from tunix_core.sandboxes.owner import Found, Guardian, Owner, environment_of, processes, session_of, state_of
from tunix_core.sandboxes.running import STDERR, STDOUT

log = logging.getLogger(__name__)
PREFIX = "tunix-sandbox-"
MARK = "TUNIX_SANDBOX"
_PIECE = 1 << 16
_EXIT_S = 5.0  # to be gone after its streams have ended
# One at a time: what a shell or machine can't limit, or limits more closely already, stays as it is.
_LIMITED = '{ ulimit -f "$1"; ulimit -v "$2"; ulimit -c 0; } 2>/dev/null; shift 2; exec "$@"'
NOT_ISOLATED = (
    "sandboxes/local does not isolate: commands run on this machine, as this user, with its files and its network. "
    "It holds: the length of a file, the memory of one process, the time of a command. "
    "For untrusted code use sandboxes/docker"
)


class LocalSandboxes:
    """Opens temporary directories on this machine; satisfies `contracts.Sandboxes`."""

    isolates = False

    def __init__(self) -> None:
        self._owner = Owner.of_this_process()
        self._guardian: Guardian | None = None
        self._open: set[LocalSandbox] = set()
        self._snapshots: list[Path] = []
        self._opened = 0
        self._said = False

    async def start(self) -> str:
        if not self._said:
            self._said = True
            log.warning("%s.", NOT_ISOLATED)
            await asyncio.to_thread(reap)
            self._guardian = Guardian("local", self._owner)
        return NOT_ISOLATED

    async def open(self, request: SandboxRequest) -> LocalSandbox:
        await self.start()
        root = Path(await asyncio.to_thread(self._directory, request))
        self._opened += 1
        sandbox = LocalSandbox(request, root, self._owner, self._keep, self._open.discard)
        self._open.add(sandbox)
        return sandbox

    def _directory(self, request: SandboxRequest) -> str:
        root = mkdtemp(prefix=f"{PREFIX}{self._owner.file_name}-")
        if request.image in map(str, self._snapshots):
            shutil.copytree(request.image, root, symlinks=True, dirs_exist_ok=True)
        return root

    def _keep(self, root: Path) -> str:
        kept = Path(mkdtemp(prefix=f"{PREFIX}{self._owner.file_name}-"))
        shutil.copytree(root, kept, symlinks=True, dirs_exist_ok=True)
        self._snapshots.append(kept)
        return str(kept)

    async def identify(self, image: str) -> str:
        return image

    def used_images(self) -> Mapping[str, str]:
        return {}

    async def aclose(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._open)))
        for kept in self._snapshots:
            await asyncio.to_thread(shutil.rmtree, kept, ignore_errors=True)
        if self._guardian is not None:
            await asyncio.to_thread(self._guardian.end)

    def statistics(self) -> Mapping[str, float]:
        return {"open": len(self._open), "opened": self._opened}


class LocalSandbox(StreamSandbox):
    """A temporary directory, and the processes started in it. A path in the request's `workdir` means there."""

    def __init__(
        self,
        request: SandboxRequest,
        root: Path,
        owner: Owner,
        keep: Callable[[Path], str],
        forget: Callable[[LocalSandbox], None],
    ) -> None:
        super().__init__(request, str(root))
        self._root, self._keep, self._forget = root, keep, forget
        self._mark = f"{owner}#{root.name}"
        self._streams: list[_ProcessStream] = []

    async def start(self, argv: Sequence[str], user: str, env: Mapping[str, str]) -> _ProcessStream:
        variables = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": self.workdir}
        variables |= dict(self.request.env) | dict(env) | {MARK: self._mark}
        limits = self.request.limits
        blocks, kilobytes = limits.file_mb * 2048, limits.memory_mb * 1024  # what `ulimit` counts in
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", _LIMITED, "sh", str(blocks), str(kilobytes), *argv,
                stdin=PIPE, stdout=PIPE, stderr=PIPE, env=variables, cwd=self.workdir, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SandboxError(f"a command could not be started in {self.workdir}: {error}") from error
        stream = _ProcessStream(process)
        self._streams.append(stream)
        return stream

    async def kill(self, pid: int, user: str) -> None:
        await asyncio.to_thread(kill_session, pid)

    def inside(self, path: str) -> str:
        if path == self.request.workdir or path.startswith(f"{self.request.workdir}/"):
            path = path[len(self.request.workdir) :].lstrip("/") or "."
        return super().inside(path)

    async def snapshot(self) -> str:
        self._check()
        return await asyncio.to_thread(self._keep, self._root)

    async def remove(self) -> None:
        await asyncio.to_thread(kill_marked, self._mark)
        for stream in self._streams:
            await stream.end()
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
        self._forget(self)


class _ProcessStream:
    """A process of this machine; satisfies `running.Stream`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pieces: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(16)
        self._closed = False
        self._reading = asyncio.ensure_future(self._read_all())

    async def _read_all(self) -> None:
        assert self._process.stdout and self._process.stderr
        streams = ((STDOUT, self._process.stdout), (STDERR, self._process.stderr))
        await asyncio.gather(*(self._pump(number, stream) for number, stream in streams))
        if not self._closed:
            await self._pieces.put(None)

    async def _pump(self, number: int, stream: asyncio.StreamReader) -> None:
        """Reads to the end, also when nobody listens any more: what runs in the background must not block."""
        while piece := await stream.read(_PIECE):
            if not self._closed:
                await self._pieces.put((number, piece))

    async def read(self) -> tuple[int, bytes] | None:
        return await self._pieces.get()

    async def write(self, data: bytes) -> None:
        assert self._process.stdin
        with suppress(ConnectionError):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def end_input(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    async def close(self) -> None:
        self._closed = True
        await self.end_input()
        while not self._pieces.empty():  # lets a waiting `_pump` go on
            self._pieces.get_nowait()

    async def exit_code(self) -> int | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_S):
                code = await self._process.wait()
                return code if code >= 0 else 128 - code
        return None

    async def end(self) -> None:
        """Waits for the end of the streams of a process that was killed, and gives up soon."""
        await self.close()
        await asyncio.wait({self._reading}, timeout=1.0)
        self._reading.cancel()
        await asyncio.wait({self._reading})
        self._process._transport.close()  # type: ignore[attr-defined]  # asyncio has no public way to close the pipes


def kill_session(pid: int) -> None:
    """Kills the process group and the session that `pid` leads."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _kill(found for found in processes() if session_of(found) == pid)


def kill_marked(mark: str) -> None:
    """Kills every process that was started with this mark, until none is left."""
    for _ in range(20):
        found = [pid for pid in processes() if f"{MARK}={mark}".encode() in environment_of(pid)]
        if not found:
            return
        _kill(found)
        time.sleep(0.02)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def find() -> list[Found]:
    """The directories of every run on this machine, alive or dead."""
    return [_found(path) for path in Path(gettempdir()).glob(f"{PREFIX}*")]


def _found(path: Path) -> Found:
    owner = Owner.of_file_name(path.name.removeprefix(PREFIX))
    age_s = time.time() - path.stat().st_mtime
    return Found("directory", str(path), "", str(owner or ""), age_s, state_of(owner))


def clean() -> list[Found]:
    """Ends the processes and removes the directories that dead runs left."""
    orphans = [each for each in find() if each.state == "orphan"]
    for owner in {each.owner for each in orphans if each.owner}:
        kill_marked(f"{owner}#")
    for orphan in orphans:
        shutil.rmtree(orphan.id, ignore_errors=True)
    return orphans


def reap() -> int:
    """What a guardian does; gives how many were removed."""
    return len(clean())
