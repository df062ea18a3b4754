"""What images hold at the path of a work tree. The work tree lies in memory over it, so it is copied there."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import AsyncIterator
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from tunix_core.errors import SandboxError
from tunix_core.sandboxes.docker.engine import Engine, NotFound

_PIECE = 1 << 20


class Seed:
    """A tar in a temporary file without a name; several may read it at once."""

    def __init__(self, file: BinaryIO, *, nested: bool) -> None:
        self._file, self.nested = file, nested  # nested: one directory holds all the rest

    async def pieces(self) -> AsyncIterator[bytes]:
        offset = 0
        while piece := await asyncio.to_thread(os.pread, self._file.fileno(), _PIECE, offset):
            offset += len(piece)
            yield piece

    def close(self) -> None:
        self._file.close()


class Seeds:
    """Each image's files at a path, fetched once.

    Args:
        labels: of the containers, never started, through which the engine gives them.
    """

    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        self._engine, self._labels = engine, labels
        self._found: dict[tuple[str, str], asyncio.Task[Seed | None]] = {}

    async def find(self, image: str, path: str) -> Seed | None:
        """The files of an image at `path`; None when there are none."""
        key = (image, path)
        if key not in self._found or (self._found[key].done() and self._found[key].exception()):
            self._found[key] = asyncio.ensure_future(self._engine.call(lambda api: self._fetch(api, image, path)))
        return await asyncio.shield(self._found[key])

    async def keep(self, image: str, path: str, file: BinaryIO) -> None:
        """From now on `image` has the content of this tar at `path`."""

        async def given() -> Seed:
            return Seed(file, nested=False)

        self._found[image, path] = asyncio.ensure_future(given())

    def _fetch(self, api: Any, image: str, path: str) -> Seed | None:
        file = TemporaryFile()  # noqa: SIM115 - the Seed closes it
        made = api.create_container(image, entrypoint=["/nothing"], labels=self._labels)["Id"]
        try:
            for piece in api.get_archive(made, path)[0]:
                file.write(piece)
        except NotFound:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        finally:
            api.remove_container(made, force=True, v=True)
        file.flush()
        if _holds_something(file, image, path):
            return Seed(file, nested=True)
        file.close()
        return None

    def close(self) -> None:
        for task in self._found.values():
            if task.done() and not task.cancelled() and not task.exception() and (seed := task.result()):
                seed.close()


def _holds_something(file: BinaryIO, image: str, path: str) -> bool:
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        first = tar.next()
        if first is None or not first.isdir():
            raise SandboxError(f"{path} in image {image} is no directory; choose another workdir", retry=False)
        return tar.next() is not None
