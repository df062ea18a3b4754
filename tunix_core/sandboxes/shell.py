"""A bash that lives on between commands; satisfies `contracts.Shell`."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from tunix_core.contracts import ExecResult
from tunix_core.errors import SandboxError
from tunix_core.sandboxes.output import Bounded
from tunix_core.sandboxes.running import Channel, NotStarted, Stream

_ENDED = 1000  # added to the status with which the shell itself ends
# The shell's end is said by the one around it, since background jobs may hold the stream open.
_START = f"""read -r t; echo "$$" >&2
cd -- "$1" && bash --noprofile --norc 2>&1; printf '%s%s\\n' "$t" "$(($? + {_ENDED}))" """


def shell_argv(cwd: str) -> tuple[str, ...]:
    """What starts a shell: it waits for a word, says its process id on stderr, and the word when it ends."""
    return ("/bin/sh", "-c", _START, "sh", cwd)


class BashShell:
    """Runs one command after the other in one bash.

    Args:
        start: starts `shell_argv` and gives its streams.
        kill: ends the session of the given process, inside.
        make_room: called when a shell can't be started; whether trying again may help.
        limit: bytes kept of one command's output.
        start_s: seconds a shell may take to start.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Stream]],
        kill: Callable[[int], Awaitable[None]],
        make_room: Callable[[], Awaitable[bool]],
        limit: int,
        start_s: float,
    ) -> None:
        self._start, self._kill, self._make_room = start, kill, make_room
        self._limit, self._start_s = limit, start_s
        self._word = secrets.token_hex(8)
        self._stream: Stream | None = None
        self._pid = 0
        self._lock = asyncio.Lock()
        self._closed = False

    async def run(self, command: str, *, timeout_s: float) -> ExecResult:
        """See `contracts.Shell`. Raises SandboxError, also when it is closed."""
        if "\0" in command:
            return ExecResult(2, b"a command can't hold a NUL character\n")
        async with self._lock:
            stream = await self._opened()
            try:
                result = await self._ran(stream, command, timeout_s)
            except BaseException:
                await asyncio.shield(self._end())
                raise
            if result.exit_code is None or result.exit_code >= _ENDED:
                await self._end()
            return result if result.exit_code is None else replace(result, exit_code=result.exit_code % _ENDED)

    async def close(self) -> None:
        self._closed = True
        await self._end()

    async def drop(self) -> None:
        """Lets go of it; what runs in it is ended in another way."""
        self._closed, self._pid = True, 0
        if self._stream is not None:
            await self._stream.close()

    async def _opened(self) -> Stream:
        if self._closed:
            raise SandboxError("the shell is closed")
        if self._stream is None:
            try:
                return await self._open()
            except NotStarted:
                if not await self._make_room():
                    raise
            return await self._open()
        return self._stream

    async def _open(self) -> Stream:
        self._stream = await self._start()
        self._pid = await self._heading(self._stream)
        return self._stream

    async def _heading(self, stream: Stream) -> int:
        """The process id that leads the shell's session."""
        said = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_s):
                await stream.write(f"{self._word}\n".encode())
                while b"\n" not in said and (piece := await stream.read()) is not None:
                    said += piece[1]
        first = said.partition(b"\n")[0]
        if not first.isdigit():
            await self._end()
            raise NotStarted(f"no shell could be started in the sandbox: {said.decode(errors='replace')[:300]}")
        return int(first)

    async def _ran(self, stream: Stream, command: str, timeout_s: float) -> ExecResult:
        # `eval` keeps the command in this shell, and from reading what follows it.
        line = f"eval {shlex.quote(command)} </dev/null; printf '{self._word}%s\\n' \"$?\"\n"
        kept, started = Bounded(self._limit), time.monotonic()
        channel, timed_out = Channel(self._word.encode(), kept, wait_for_pid=False), True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await stream.write(line.encode(errors="surrogateescape"))
                while channel.exit_code is None and (piece := await stream.read()) is not None:
                    channel.feed(piece[1])
                timed_out = False
        channel.end()
        seconds = time.monotonic() - started
        return ExecResult(channel.exit_code, kept.value(), b"", timed_out, kept.dropped, 0, seconds)

    async def _end(self) -> None:
        """Kills the shell and what runs in its session; the next command starts another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()
        if self._pid:
            pid, self._pid = self._pid, 0
            await self._kill(pid)
