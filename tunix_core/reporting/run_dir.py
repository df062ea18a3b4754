"""The run directory: everything a run leaves behind, written as it happens.

config.toml          the whole configuration, with whole ids
lock.json            distributions, versions, hashes of the specs, seeds
metrics.jsonl        one row per step
spans/               where the time went, for `tunix trace`
trajectories.jsonl   one readable line per finished episode
checkpoints/         the newest few
not-finite/          the groups of each step whose gradient was not finite
summary.json         before and after, when the run evaluates
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from tunix_core.errors import CheckpointError, UsageError
from tunix_core.types import Group, Message, Row, Trajectory

BUFFER_BYTES = 1 << 18
FLUSH_S = 0.25  # at least, between two writes of episodes: each is a call of the system
NOT_FINITE = "not-finite"
_line = json.JSONEncoder(default=str).encode
MARKS = ("config.toml", "lock.json")  # what tells a run from any other directory


class RunDir:
    """An open run directory. Rows are appended and flushed, so a killed run keeps what it wrote; of its episodes,
    all but those of the last quarter of a second.

    Args:
        path: created when missing.
        resume: go on in an existing run.
        overwrite: replace an existing run. It is kept beside, as PATH.replaced, until this one has trained a step or
            ended well; where this one could not begin, it is put back.

    Raises:
        UsageError: the directory holds a run and neither was asked for, or holds something else.
        CheckpointError: `resume` without a run there.
    """

    def __init__(self, path: Path, *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = path
        self._replaced: Path | None = None
        exists = _is_run(path)
        if resume and not exists:
            raise CheckpointError(
                f"nothing to resume in {path}: it lacks {' or '.join(MARKS)}. Start without --resume."
            )
        if exists and overwrite and not resume:
            os.close(_held(path))  # never while another process writes it
            self._replaced = _set_aside(path)
        elif exists and not resume:
            raise UsageError(f"{path} already holds a run. Go on with --resume, or replace it with --overwrite.")
        elif path.exists() and not exists and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} is not empty and is not a run. Choose another run_dir.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path} can't be made: {error.strerror}. Choose another run_dir.") from error
        self._holding: int | None = _held(path)
        self._metrics = _append_to(path / "metrics.jsonl")
        self._trajectories, self._flushed_s = _append_to(path / "trajectories.jsonl"), 0.0

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_text(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(value, indent=2, default=str) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise CheckpointError(f"{path} can't be read: {error}") from error

    def metrics(self, row: Mapping[str, float]) -> None:
        """Appends one step's row."""
        self._drop_replaced()
        self._metrics.write(json.dumps(row) + "\n")
        self._metrics.flush()
        self._trajectories.flush()

    def cut_metrics(self, step: int) -> None:
        """Forgets rows of steps from `step` on: a resumed run takes them again."""
        path = self.path / "metrics.jsonl"
        kept = [line for line in path.read_text(errors="replace").splitlines() if _step(line) < step]
        self._metrics.close()
        partial = path.with_name("metrics.partial")
        partial.write_text("".join(f"{line}\n" for line in kept))
        partial.replace(path)  # whole or not at all, whenever the process dies
        self._metrics = _append_to(path)

    def trajectory(self, trajectory: Trajectory) -> None:
        """Appends one episode, as a person would want to read it."""
        self._trajectories.write(_line(readable(trajectory)) + "\n")
        now_s = time.monotonic()
        if now_s - self._flushed_s >= FLUSH_S:
            self._trajectories.flush()
            self._flushed_s = now_s

    def not_finite(self, step: int, groups: Sequence[Group]) -> None:
        """Keeps the episodes of a step whose gradient was not finite, with the arrays that were trained on."""
        folder = self.path / NOT_FINITE
        folder.mkdir(exist_ok=True)
        rows = (readable(t) | {"branches": [_arrays(row) for row in t.rows()]} for g in groups for t in g.survivors)
        (folder / f"step-{step:08d}.jsonl").write_text("".join(_line(row) + "\n" for row in rows))

    def forget(self) -> None:
        """Removes what could not begin: the corrected run may have the directory, and what was there before is there
        again. One with a step, an episode or a checkpoint stays."""
        told = self._metrics.tell() + self._trajectories.tell()  # the positions count what is still buffered
        if not told and not self.checkpoints.exists():
            shutil.rmtree(self.path)
            if self._replaced:
                self._replaced.rename(self.path)
                self._replaced = None

    def _drop_replaced(self) -> None:
        if self._replaced:
            shutil.rmtree(self._replaced)
            self._replaced = None

    def close(self) -> None:
        self._drop_replaced()
        self._metrics.close()
        self._trajectories.close()
        if self._holding is not None:
            os.close(self._holding)
            self._holding = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error:
            self._replaced = None  # stays beside, as PATH.replaced, where this run broke before its first step
        self.close()


def _is_run(path: Path) -> bool:
    return all((path / name).exists() for name in MARKS)


def _set_aside(path: Path) -> Path:
    """Moves a run to where it stays until it is replaced; what an earlier one left there, killed before that, goes."""
    aside = path.with_name(f"{path.name}.replaced")
    try:
        if _is_run(aside):
            shutil.rmtree(aside)
        return path.rename(aside)
    except OSError as error:
        raise UsageError(f"{path} can't be moved to {aside}: {error.strerror}. Choose another run_dir.") from error


def read_rows(path: Path) -> Iterator[dict[str, float]]:
    """The rows of a run directory's metrics; what a kill cut short is left out."""
    with (path / "metrics.jsonl").open() as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                return


def _held(path: Path) -> int:
    """The directory, open and locked: two processes writing one run would mix their steps. A kill lets go."""
    directory = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(directory)
        raise UsageError(f"another process trains in {path}. End it first, or choose another run_dir.") from error
    return directory


def _append_to(path: Path) -> TextIO:
    """The file, open to append whole lines: one that a kill cut short goes."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
    return path.open("a", BUFFER_BYTES)


def _step(line: str) -> float:
    """A row's step; infinity for a damaged row, which must not keep a run from going on."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


def readable(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as JSON: its conversation as text, its score with parts, how it ended."""
    score, failure = trajectory.score, trajectory.failure
    return {
        "id": str(trajectory.id),
        "env": trajectory.env,
        "task": trajectory.task.id,
        "messages": [_readable_message(message) for message in trajectory.messages],
        "score": score.value if score else None,
        "parts": dict(score.parts) if score else {},
        "status": trajectory.status,
        "stop_reason": trajectory.stop_reason,
        "failure": {"kind": failure.kind, "boundary": failure.boundary, "message": failure.message}
        if failure
        else None,
        "turns": trajectory.turns,
        "tokens": sum([span.tokens.size for span in trajectory.spans]),
        "sampled_tokens": trajectory.sampled_tokens,
        "oldest_version": trajectory.oldest_version,
        "timing": {name: round(value, 4) for name, value in trajectory.timing.items()},
    }


def _arrays(row: Row) -> dict[str, list[float]]:
    return {name: getattr(row, name).tolist() for name in Row.__slots__}


def _readable_message(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "text": message.text}
    if message.tool_calls:
        row["tool_calls"] = [
            {"name": call.name, "arguments": call.arguments, **({"error": call.error} if call.error else {})}
            for call in message.tool_calls
        ]
    return row
