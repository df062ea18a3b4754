"""What is kept of a command's output, and how its end is seen in it."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.contracts import SandboxRequest
from tunix_core.errors import SandboxError
from tunix_core.sandboxes.base import StreamSandbox
from tunix_core.sandboxes.output import Bounded, Whole
from tunix_core.sandboxes.running import STDERR, STDOUT, Channel, NotStarted, Running, wrapped
from tunix_core.testing import clock

CHUNKS = st.lists(st.binary(max_size=40), max_size=20)


@given(CHUNKS, st.integers(2, 64))
def test_both_ends_are_kept_and_the_rest_is_counted(chunks: list[bytes], limit: int) -> None:
    kept, whole, half = Bounded(limit), b"".join(chunks), limit // 2
    for _ in range(2):  # cleared, it is as new
        kept.clear()
        for chunk in chunks:
            kept.add(chunk)
    value = kept.value()
    if len(whole) <= 2 * half:
        assert (value, kept.dropped) == (whole, 0)
    else:
        assert kept.dropped == len(whole) - 2 * half
        between = f"\n[… {kept.dropped} bytes left out …]\n".encode()
        assert value == whole[:half] + between + whole[-half:]


@given(CHUNKS, st.integers(0, 64))
def test_a_file_takes_what_fits_and_counts_the_rest(chunks: list[bytes], limit: int) -> None:
    file, whole = io.BytesIO(), b"".join(chunks)
    sink = Whole(file, limit)
    for _ in range(2):  # cleared, it is as new
        sink.clear()
        for chunk in chunks:
            sink.add(chunk)
    assert (file.getvalue(), sink.dropped) == (whole[:limit], max(0, len(whole) - limit))


@given(st.binary(max_size=80), st.integers(0, 255), st.lists(st.integers(0, 120), max_size=6))
def test_the_end_is_seen_however_the_stream_is_cut(output: bytes, code: int, cuts: list[int]) -> None:
    token = b"0123456789abcdef"
    data = b"4711\n" + output + token + f"{code}\n".encode()
    kept = Bounded(1000)
    channel = Channel(token, kept, wait_for_pid=True)
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        channel.feed(data[start:end])
    assert (channel.pid, channel.exit_code, kept.value()) == (4711, code, output)


@pytest.mark.parametrize("wrong", [[], "ls -l", ["a\0b"]])
def test_what_is_no_command_is_refused(wrong: list[str]) -> None:
    with pytest.raises(ValueError, match="command"):
        wrapped(wrong, "/")


class Scripted:
    """A stream that says what it was told to, waits where that is a number, and then ends or hangs."""

    def __init__(self, *script: tuple[int, bytes] | float, hangs: bool = False) -> None:
        self._script, self._hangs, self._killed = list(script), hangs, asyncio.Event()
        self.written, self.closed, self.killed = b"", 0, []

    async def read(self) -> tuple[int, bytes] | None:
        if self._script and isinstance(self._script[0], float):
            await asyncio.sleep(self._script.pop(0))  # type: ignore[arg-type]
            return await self.read()
        if self._script:
            number, data = self._script.pop(0)  # type: ignore[misc]
            return number, data.replace(b"TOKEN", self.written.partition(b"\n")[0])
        if self._hangs:
            await self._killed.wait()
        return None

    async def write(self, data: bytes) -> None:
        self.written += data

    async def end_input(self) -> None: ...

    async def close(self) -> None:
        self.closed += 1

    async def exit_code(self) -> int | None:
        return 137

    async def kill(self, pid: int) -> None:
        self.killed.append(pid)
        self._killed.set()


def run(stream: Scripted, timeout_s: float = 10.0) -> object:
    running = Running(stream, Bounded(100), Bounded(100), stream.kill)
    return clock.run(running.result(None, timeout_s, start_s=5.0))


def scripted(*script: tuple[int, bytes] | float, hangs: bool = False) -> Scripted:
    return Scripted(0.001, *script, hangs=hangs)  # the token is written first


def test_a_background_process_that_holds_the_stream_delays_nothing() -> None:
    stream = scripted((STDERR, b"7\n"), (STDOUT, b"hiTOKEN0\n"), (STDERR, b"TOKEN0\n"), hangs=True)
    result = run(stream)
    assert (result.exit_code, result.stdout, result.timed_out) == (0, b"hi", False)  # type: ignore[attr-defined]
    assert (stream.killed, stream.closed) == ([], 1)


def test_a_late_command_is_killed_and_keeps_what_it_said() -> None:
    stream = scripted((STDERR, b"7\n"), (STDOUT, b"begun"), hangs=True)
    result = run(stream)
    assert (result.exit_code, result.stdout, result.timed_out) == (None, b"begun", True)  # type: ignore[attr-defined]
    assert (stream.killed, stream.closed) == ([7], 1)


def test_a_wrapper_that_was_killed_has_the_engines_exit_status() -> None:
    result = run(scripted((STDERR, b"7\nbad"), (STDOUT, b"some")))
    assert (result.exit_code, result.stdout, result.stderr) == (137, b"some", b"bad")  # type: ignore[attr-defined]


def test_the_time_to_start_is_not_the_commands() -> None:
    stream = scripted(4.0, (STDERR, b"7\n"), 9.0, (STDOUT, b"TOKEN0\n"), (STDERR, b"TOKEN0\n"))
    assert run(stream, timeout_s=10.0).exit_code == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [scripted((STDOUT, b"OCI runtime exec failed")), scripted(hangs=True)])
def test_a_command_that_does_not_start_is_the_sandboxs_fault(stream: Scripted) -> None:
    with pytest.raises(NotStarted, match=r"could not be started"):
        run(stream)
    assert stream.closed == 1 and issubclass(NotStarted, SandboxError)


class Crowded(StreamSandbox):
    """A sandbox without room for a process at first, whose engine says so where the output would be."""

    def __init__(self) -> None:
        super().__init__(SandboxRequest("image"), "/workspace")
        self.room = False

    async def start(self, argv: Sequence[str], user: str, env: Mapping[str, str]) -> Scripted:
        if not self.room:
            return scripted((STDOUT, b"OCI runtime exec failed\r\n"))
        return scripted((STDERR, b"7\n"), (STDOUT, b"aliveTOKEN0\n"), (STDERR, b"TOKEN0\n"))

    async def make_room(self) -> bool:
        self.room = True
        return True

    async def kill(self, pid: int, user: str) -> None: ...
    async def remove(self) -> None: ...
    async def snapshot(self) -> str:
        return ""


def test_why_a_first_try_did_not_start_is_no_output() -> None:
    result = asyncio.run(Crowded().exec(["echo", "alive"], timeout_s=5.0))
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"alive", b"")
