"""The streams of a command in a container: frames over one socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

from tunix_core.sandboxes.docker.engine import Engine

_HEAD = struct.Struct(">BxxxI")  # which stream, and how many bytes follow
_PIECE = 1 << 16
_LOOKS, _LOOK_S = 100, 0.05  # for the engine to note how a process ended


class ExecStream:
    """One process; satisfies `running.Stream`."""

    def __init__(
        self, engine: Engine, identity: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._engine, self._id, self._reader, self._writer = engine, identity, reader, writer
        self._left = 0  # bytes of the current frame still to come
        self._number = 0

    @classmethod
    async def open(cls, engine: Engine, identity: str, sock: socket.socket) -> ExecStream:
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 18)
        return cls(engine, identity, reader, writer)

    async def read(self) -> tuple[int, bytes] | None:
        try:
            if not self._left:
                self._number, self._left = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            piece = await self._reader.read(min(self._left, _PIECE))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self._left -= len(piece)
        return (self._number, piece) if piece else None

    async def write(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def end_input(self) -> None:
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()

    async def close(self) -> None:
        self._writer.transport.abort()

    async def exit_code(self) -> int | None:
        for _ in range(_LOOKS):
            found = await self._engine.call(lambda api: api.exec_inspect(self._id))
            if not found["Running"]:
                return found["ExitCode"]
            await asyncio.sleep(_LOOK_S)
        return None
