"""Spans on disk: written while the run goes on, in compressed pieces; nothing is ever rewritten.

A run's folder `spans` has one numbered file for each process that wrote: gzip, a line of JSON a
piece. The first line says when the clock of the spans read zero; the others are lists of
[id, parent, name, start_ns, duration_ns, tags, error]. A kill costs what came after the last piece.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tunix_core.profiling.recorder import Recorder, SpanRecord

PIECE = 500  # spans encoded at once: the interpreter's lock is held for less than a millisecond
GZIP = 31  # zlib's `wbits` of that format
Watch = Callable[[Sequence[SpanRecord]], None]


class SpanLog:
    """Drains a recorder every `every_s` in a thread of its own, and writes what it finds.

    Args:
        folder: where the file goes; None: nothing is written.
        watch: is given every span once, in order of ending; under a lock, from any thread.
    """

    def __init__(
        self, recorder: Recorder, folder: Path | None, watch: Watch = lambda spans: None, *, every_s: float = 0.25
    ) -> None:
        self._recorder, self._watch, self._every_s = recorder, watch, every_s
        self._pack, self._lock, self._ending = zlib.compressobj(1, wbits=GZIP), threading.RLock(), threading.Event()
        self._file = None if folder is None else _next_file(folder).open("xb")
        self._write([{"zero_ns": time.time_ns() - time.perf_counter_ns()}])
        self._thread = threading.Thread(target=self._run, name="tunix-spans", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Takes what has finished until now. Safe from any thread."""
        with self._lock:
            spans = self._recorder.drain()
            for start in range(0, len(spans), PIECE):
                self._take(spans[start : start + PIECE])

    def close(self) -> None:
        """Ends the thread and the file; spans still open are written as ending now, with error "open"."""
        self._ending.set()
        self._thread.join()
        self.flush()
        self._take([each._replace(error="open") for each in self._recorder.open()])
        if self._file is not None:
            self._file.write(self._pack.flush())
            self._file.close()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            self.flush()

    def _take(self, spans: Sequence[SpanRecord]) -> None:
        self._watch(spans)
        self._write(
            [(own, up, name, start, end - start, tags, error) for own, up, name, start, end, tags, error in spans]
        )

    def _write(self, piece: list[Any]) -> None:
        if self._file is not None and piece:
            line = json.dumps(piece, separators=(",", ":"), default=str) + "\n"
            self._file.write(self._pack.compress(line.encode()) + self._pack.flush(zlib.Z_SYNC_FLUSH))
            self._file.flush()


def read_spans(folder: Path) -> Iterator[SpanRecord]:
    """Every span of a run, in the order they were written; times are of `time.time_ns`.

    What a kill cut short is left out. Ids are unique within the run.
    """
    for number, path in enumerate(sorted(folder.glob("*.jsonl.gz"))):
        offset, zero_ns = number << 48, 0
        for piece in map(json.loads, _lines(path)):
            if isinstance(piece[0], dict):
                zero_ns = piece[0]["zero_ns"]
                continue
            for own, parent, name, start, lasted, tags, error in piece:
                start_ns = zero_ns + start
                above = parent + offset if parent else 0
                yield SpanRecord(own + offset, above, name, start_ns, start_ns + lasted, tags, error)


def _lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a gzip file that may end anywhere."""
    unpack, rest = zlib.decompressobj(GZIP), b""
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            *lines, rest = (rest + unpack.decompress(data)).split(b"\n")
            yield from lines


def _next_file(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / f"{len(list(folder.glob('*.jsonl.gz'))):04d}.jsonl.gz"
