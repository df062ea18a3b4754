"""What a command writes, bounded while it streams."""

from __future__ import annotations

from typing import BinaryIO, Protocol


class Sink(Protocol):
    """Where a stream's output goes. `dropped` counts the bytes that were not kept."""

    dropped: int

    def add(self, chunk: bytes) -> None: ...
    def value(self) -> bytes: ...
    def clear(self) -> None: ...  # as if nothing had come


class Whole:
    """Puts a stream into a file, up to `limit` bytes."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.file, self._limit = file, limit
        self._room, self.dropped = limit, 0

    def add(self, chunk: bytes) -> None:
        kept = chunk[: self._room]
        self.file.write(kept)
        self._room -= len(kept)
        self.dropped += len(chunk) - len(kept)

    def value(self) -> bytes:
        """Nothing: it is in the file."""
        return b""

    def clear(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self._room, self.dropped = self._limit, 0


class Bounded:
    """Keeps the first and the last half of `limit` bytes of a stream, and counts the rest.

    Both ends matter: a log begins with what was run and ends with how it went.
    """

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head, self._tail = bytearray(), bytearray()
        self.dropped = 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._half:  # cut now and then, so that adding stays cheap
            self._cut()

    def value(self) -> bytes:
        """All of it, or both ends with a line between them that says how much is left out."""
        self._cut()
        between = f"\n[… {self.dropped} bytes left out …]\n".encode() if self.dropped else b""
        return bytes(self._head) + between + bytes(self._tail)

    def clear(self) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self.dropped = 0

    def _cut(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            self.dropped += excess
            del self._tail[:excess]
