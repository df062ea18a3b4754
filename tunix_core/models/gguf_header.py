"""The head of a GGUF file: its fields, and where its tensors lie.

Read here since the reader of the `gguf` package makes NumPy views for every string, which takes most of the time
of opening a model; what types there are, and what their numbers mean, is that package's. The layout is that of
version 2 and 3 of the format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tunix_core.errors import CheckpointError

VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies.

    Attributes:
        file: which holds it.
        kind: its type, one of gguf.GGMLQuantizationType.
        shape: row-major, as NumPy has it; the file says it the other way round.
        start: its first byte.
        size: its bytes.
    """

    file: Path
    kind: Any
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Fields by name, as plain values, and tensors by name."""

    fields: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]


def read_header(path: Path) -> GgufHeader:
    """The head of the file. Raises CheckpointError when it is no GGUF file, is corrupt or is cut off."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _header(path, _Cursor(data), len(data))
    except (OSError, ValueError, struct.error, RecursionError) as error:
        said = "it ends too early" if isinstance(error, struct.error) else " ".join(str(error).split())
        raise CheckpointError(f"{path} is corrupt, cut off or no GGUF file: {said}") from error


class _Cursor:
    """Reads values one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.at = data, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        start, self.at = self.at, self.at + struct.calcsize(f"<{layout}")
        return struct.unpack_from(f"<{layout}", self._data, start)

    def text(self) -> str:
        (size,) = self.take("Q")
        start, self.at = self.at, self.at + size
        if self.at > len(self._data):
            raise struct.error("a text ends after the file")
        return self._data[start : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind in SCALARS:
            return self.take(SCALARS[kind])[0]
        if kind != ARRAY:
            raise ValueError(f"a field of type {kind}, expected one of 0 to 12")
        inner, count = self.take("IQ")
        return list(self.take(f"{count}{SCALARS[inner]}")) if inner in SCALARS else self._values(inner, count)

    def _values(self, kind: int, count: int) -> list[Any]:
        values = []
        while len(values) < count:
            values.append(self.value(kind))
        return values


def _header(path: Path, cursor: _Cursor, size: int) -> GgufHeader:
    magic, version = cursor.take("4sI")
    if magic != b"GGUF":
        raise ValueError(f"it begins with {magic!r}, expected b'GGUF'")
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}, expected {' or '.join(map(str, VERSIONS))}, little-endian")
    tensors, fields = cursor.take("QQ")
    stated = {cursor.text(): cursor.value(cursor.take("I")[0]) for _ in range(fields)}
    said = [_said(cursor) for _ in range(tensors)]
    alignment = stated.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r:.80}, expected a whole number of at least 1")
    start = -(-cursor.at // alignment) * alignment
    places = {name: _place(path, name, shape, kind, start + offset) for name, shape, kind, offset in said}
    for name, place in places.items():
        if place.start + place.size > size:
            raise ValueError(f"{name!r} ends at byte {place.start + place.size} of {size}")
    return GgufHeader(stated, places)


def _said(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, (rank,) = cursor.text(), cursor.take("I")
    shape = cursor.take(f"{rank}Q")[::-1]
    return name, shape, *cursor.take("IQ")


def _place(path: Path, name: str, shape: tuple[int, ...], kind: int, start: int) -> TensorPlace:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    known = GGMLQuantizationType(kind)  # a ValueError names a kind that is none
    block, bytes_each = GGML_QUANT_SIZES[known]
    if shape and shape[-1] % block:
        raise ValueError(f"{name!r} of type {known.name} has rows of {shape[-1]}, expected a multiple of {block}")
    return TensorPlace(path, known, shape, start, prod(shape) // block * bytes_each)
