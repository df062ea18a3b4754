"""One command in a sandbox, from its start to its result, over any pair of streams.

A small shell wraps each command. It waits for a word, says its process id, which leads the command's
process group, and when the command is over says the word on both streams. So nothing is said before
somebody listens, the end is seen even when something left in the background holds the streams open, and
nothing that a stream still carries is lost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tunix_core.contracts import ExecResult
from tunix_core.errors import SandboxError
from tunix_core.sandboxes.output import Sink

STDOUT, STDERR = 1, 2
DRAIN_S = 1.0  # for streams to end once their process group is killed
_TRAILER = 16 + 8  # bytes of the word twice over, an exit status, and the line's end

_WRAPPER = """read -r t; echo "$$" >&2; d=$1; shift
if cd -- "$d"; then "$@"; c=$?; else c=126; fi
printf '%s%s\\n' "$t" "$c" >&2; printf '%s%s\\n' "$t" "$c" """
# No process is made here, so that it works where a fork bomb leaves no room for one.
KILLER = """kill -KILL -"$1" 2>/dev/null
for f in /proc/[0-9]*/stat; do
  { read -r line < "$f"; } 2>/dev/null || continue
  pid=${line%% *}; set -- "$1" ${line##*) }
  [ "$5" = "$1" ] && kill -KILL "$pid" 2>/dev/null
done
exit 0"""


class NotStarted(SandboxError):
    """A process could not be started in the sandbox; it may be that others leave no room."""


class Stream(Protocol):
    """A running process as its streams."""

    async def read(self) -> tuple[int, bytes] | None:
        """The next piece of output and which stream it is of; None at the end of both."""
        ...

    async def write(self, data: bytes) -> None: ...  # waits while the reader is slow; nothing when it is gone
    async def end_input(self) -> None: ...
    async def close(self) -> None: ...  # lets go of the streams; the process may live on
    async def exit_code(self) -> int | None: ...  # of a process whose streams have ended


def wrapped(command: Sequence[str], cwd: str) -> tuple[str, ...]:
    """`command` in its wrapper. Raises ValueError for an empty one, or a NUL in it."""
    if not command or isinstance(command, str):
        raise ValueError(f"a command is a sequence of words, such as ['ls', '-l'], not {command!r:.100}")
    if any("\0" in word for word in command):
        raise ValueError("a word of a command can't hold a NUL character")
    return ("/bin/sh", "-c", _WRAPPER, "sh", cwd, *command)


class Channel:
    """One of the two streams: keeps what counts, and sees the trailer: the token, a status, a line's end."""

    def __init__(self, token: bytes, sink: Sink, wait_for_pid: bool) -> None:
        self._token, self.kept = token, sink
        self._held = b""  # what may be the beginning of the trailer
        self._heading = wait_for_pid
        self.pid: int | None = None
        self.exit_code: int | None = None

    def feed(self, chunk: bytes) -> None:
        data = self._held + chunk
        if self._heading:
            line, newline, rest = data.partition(b"\n")
            if not newline:
                self._held = data
                return
            self._heading, self.pid, data = False, int(line) if line.isdigit() else None, rest
        at = data.find(self._token)
        if at >= 0:
            self._finish(data[:at], data[at:])
            return
        keep = min(len(data), _TRAILER)
        self.kept.add(data[: len(data) - keep])
        self._held = data[len(data) - keep :]

    def _finish(self, output: bytes, trailer: bytes) -> None:
        digits, newline, _ = trailer[len(self._token) :].partition(b"\n")
        if not newline:
            self._held = output + trailer
            return
        self.kept.add(output)
        self._held, self.exit_code = b"", int(digits)

    def end(self) -> None:
        self.kept.add(self._held)
        self._held = b""


class Running:
    """A wrapped command that was started: waits for it, within bounds.

    Args:
        stream: its streams.
        out, err: what keeps its output.
        kill: ends the process group of the given id, inside.
    """

    def __init__(self, stream: Stream, out: Sink, err: Sink, kill: Callable[[int], Awaitable[None]]) -> None:
        self._stream, self._kill = stream, kill
        self._token = secrets.token_hex(8).encode()
        self._channels = {STDOUT: Channel(self._token, out, False), STDERR: Channel(self._token, err, True)}
        self._ended = False

    async def result(self, pieces: AsyncIterator[bytes] | None, timeout_s: float, start_s: float) -> ExecResult:
        """Feeds the command its input and waits for its end; past `timeout_s` it is killed.

        Args:
            pieces: its input; None: none.
            timeout_s: from when it runs.
            start_s: until it runs.

        Raises:
            NotStarted: it did not start.
        """
        feeding = asyncio.ensure_future(self._feed(pieces))
        try:
            await self._until(lambda: self.pid is not None, start_s)
            if self.pid is None:
                raise NotStarted(self._why_not_started())
            started, timed_out = time.monotonic(), not await self._until(self._over, timeout_s)
            seconds = time.monotonic() - started
            if timed_out:
                await self._end()
            return await self._result(timed_out, seconds)
        except asyncio.CancelledError:
            if self.pid is not None:
                await asyncio.shield(self._end())
            raise
        finally:
            feeding.cancel()
            await self._stream.close()

    async def _feed(self, pieces: AsyncIterator[bytes] | None) -> None:
        await self._stream.write(self._token + b"\n")
        if pieces is not None:
            async for piece in pieces:
                await self._stream.write(piece)
        await self._stream.end_input()

    @property
    def pid(self) -> int | None:
        return self._channels[STDERR].pid

    def _over(self) -> bool:
        return self._ended or all(channel.exit_code is not None for channel in self._channels.values())

    async def _until(self, reached: Callable[[], bool], limit_s: float) -> bool:
        """Reads until `reached()` or the streams' end; False when that takes longer than `limit_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not reached() and not self._ended:
                    piece = await self._stream.read()
                    if piece is None:
                        self._ended = True
                        for channel in self._channels.values():
                            channel.end()
                    else:
                        self._channels[piece[0]].feed(piece[1])
                return True
        return False

    async def _end(self) -> None:
        """Kills the process group, and reads what was still on its way."""
        assert self.pid is not None
        await self._kill(self.pid)
        if not await self._until(self._over, DRAIN_S):
            for channel in self._channels.values():
                channel.end()

    async def _result(self, timed_out: bool, seconds: float) -> ExecResult:
        out, err = self._channels[STDOUT], self._channels[STDERR]
        code = None
        if not timed_out:
            code = out.exit_code if out.exit_code is not None else await self._stream.exit_code()
        return ExecResult(
            code, out.kept.value(), err.kept.value(), timed_out, out.kept.dropped, err.kept.dropped, seconds
        )

    def _why_not_started(self) -> str:
        said = b" ".join(channel.kept.value() for channel in self._channels.values()).decode(errors="replace").strip()
        return f"a command could not be started in the sandbox: {said[:500] or 'its engine did not answer'}"


async def pieces_of(data: bytes, size: int = 1 << 16) -> AsyncIterator[bytes]:
    """`data` in pieces of at most `size` bytes."""
    for start in range(0, len(data), size):
        yield data[start : start + size]
