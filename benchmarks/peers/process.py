"""A peer's script in the peer's own virtual environment, asked line by line."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any


class Peer:
    """A script that prints one line of JSON when it is ready, and one for each line it is given.

    Args:
        environment: the virtual environment; without it, or when the script fails, this says so and answers nothing.
        limit_s: seconds an answer may take; a peer that takes longer is ended.

    Attributes:
        first: what the script said first, or None.
    """

    def __init__(self, environment: Path, script: Path, *arguments: str, limit_s: float) -> None:
        self._name, self._limit_s = script.stem, limit_s
        self._process: subprocess.Popen[str] | None = None
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed on exit; a pipe would fill unread
        python = environment / "bin" / "python"
        if python.exists():
            command = [str(python), str(script), *arguments]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=self._complaints)
            self.first: Any = self._read()
        else:
            print(f"({self._name} is absent: there is no {python})")
            self.first = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._complaints.close()

    def ask(self, line: str) -> list[Any]:
        """The answer, or nothing when there is no peer."""
        if self._process is None or self._process.stdin is None:
            return []
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return [] if answer is None else [answer]

    def _read(self) -> Any:
        """The next line of JSON; None, said aloud, when the script ended instead."""
        process = self._process
        assert process is not None and process.stdout is not None
        timer = Timer(self._limit_s, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if line:
            return json.loads(line)
        process.wait()
        self._complaints.seek(0)
        last = self._complaints.read().splitlines()[-1:] or [f"no answer within {self._limit_s:.0f} s"]
        print(f"({self._name} failed: {last[0]})")
        self._process = None
        return None
