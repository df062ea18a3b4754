"""Whose sandboxes are these, and is their owner alive? And who cleans up when it is killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Owner:
    """One process, for good: a number that is given to another process later has another start.

    Attributes:
        started: clock ticks from the machine's start to the process's.
    """

    host: str
    pid: int
    started: int

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(socket.gethostname(), os.getpid(), started_at(os.getpid()) or 0)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """From what `str` gives; None for anything else."""
        parts = text.rsplit("/", 2)
        return cls(parts[0], int(parts[1]), int(parts[2])) if _numbers(parts[1:], 2) else None

    @classmethod
    def of_file_name(cls, name: str) -> Self | None:
        """From a name on this machine that begins with `file_name`; None for anything else."""
        parts = name.split("-")[:2]
        return cls(socket.gethostname(), int(parts[0]), int(parts[1])) if _numbers(parts, 2) else None

    @property
    def file_name(self) -> str:
        return f"{self.pid}-{self.started}"

    @property
    def here(self) -> bool:
        """Whether it is a process of this machine, so that `alive` can tell."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether it lives; one on another machine is taken to."""
        return not self.here or started_at(self.pid) == self.started

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}/{self.started}"


@dataclass(frozen=True, slots=True)
class Found:
    """Something that a run holds, or has left.

    Attributes:
        kind: "container", "image" (kept of one) or "directory".
        owner: the process whose it is.
        state: see `state_of`.
    """

    kind: str
    id: str
    image: str
    owner: str
    age_s: float
    state: str


def state_of(owner: Owner | None) -> str:
    """ "live", "elsewhere" (on another machine, which this one can't see), or "orphan"."""
    if owner is None:
        return "orphan"
    if not owner.here:
        return "elsewhere"
    return "live" if owner.alive else "orphan"


def _numbers(parts: list[str], count: int) -> bool:
    return len(parts) == count and all(part.isdigit() for part in parts)


class Guardian:
    """A small process that outlives its owner by as long as it takes to remove what that one left.

    What runs notices by itself that its owner is gone. The guardian is for what doesn't run: a container
    made and not started, a directory.

    Args:
        kind: "docker" or "local".
    """

    def __init__(self, kind: str, owner: Owner) -> None:
        command = [sys.executable, "-P", "-m", "tunix_core.sandboxes.guardian", kind, str(owner)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def processes() -> Iterator[int]:
    """Ids of the processes of this machine."""
    return (int(path.name) for path in PROC.glob("[0-9]*"))


def environment_of(pid: int) -> bytes:
    """The environment a process was started with, or b"" when it is gone or another user's."""
    with suppress(OSError):
        return (PROC / str(pid) / "environ").read_bytes()
    return b""


def session_of(pid: int) -> int | None:
    return _stat(pid, 3)


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks from the machine's start; None when there is no such process."""
    return None if _stat(pid, 0, "Z") is None else _stat(pid, 19)


def _stat(pid: int, field: int, unless: str = "") -> int | None:
    """A field of /proc/PID/stat, counted from the state; the name before it may hold anything."""
    with suppress(OSError, IndexError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        if unless:
            return None if fields[0] == unless else 0
        return int(fields[field])
    return None
