"""Directories as tar streams, to carry files into a sandbox and out of it."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

_PIECE = 1 << 20


def packed(source: Path, name: str) -> BinaryIO:
    """A tar of a file under `name`, or of a directory's content, in a temporary file without a name.

    Raises:
        FileNotFoundError: there is no `source`.
    """
    file = TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=file, mode="w") as tar:
        if source.is_dir():
            for child in sorted(source.iterdir()):
                tar.add(child, child.name, filter=_nobodys)
        else:
            tar.add(source, name, filter=_nobodys)
    return file


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


async def pieces_of_file(file: BinaryIO) -> AsyncIterator[bytes]:
    """A file's content from its start, read off the event loop."""
    await asyncio.to_thread(file.seek, 0)
    while piece := await asyncio.to_thread(file.read, _PIECE):
        yield piece


def unpack(file: BinaryIO, target: Path, only: str | None) -> None:
    """Unpacks a tar that nobody vouches for.

    Args:
        target: the directory its content goes to; or, with `only`, the file.
        only: the one member wanted.

    Raises:
        ValueError: a member, or what a link points to, would lie outside of `target`, or is no plain file; or
            it is no tar at all.
    """
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            if only is None:
                target.mkdir(parents=True, exist_ok=True)
                tar.extractall(target, filter="data")
            else:
                _unpack_one(tar, target, only)
    except tarfile.TarError as error:
        raise ValueError(f"what came out of the sandbox can't be unpacked: {error}") from error


def _unpack_one(tar: tarfile.TarFile, target: Path, only: str) -> None:
    content = tar.extractfile(only)
    if content is None:
        raise ValueError(f"{only} is no plain file")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        while piece := content.read(_PIECE):
            out.write(piece)
