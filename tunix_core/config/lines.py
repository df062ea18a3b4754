"""On which line of a TOML text each key stands. Takes text that tomllib has accepted."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[\s,]|#[^\n]*)*")
_KEY_PART = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)[ \t]*""")
_STRING = re.compile(r'''"""(?:[^\\]|\\.)*?"""+|\'\'\'.*?\'\'\'+|"(?:[^"\\]|\\.)*"|'[^']*\'''', re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> Mapping[Path, int]:
    """Line (from 1) of every key, table, and element of an array, by its path from the root.

    `[[suite]]` twice gives ("suite", 0) and ("suite", 1); `rewards = ["a", "b"]` below gives
    ("suite", 1, "rewards", 0) and so on.
    """
    return _Scanner(text).run()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Path, int] = {}
        self._elements: dict[Path, int] = {}  # tables so far in each [[array]]

    def run(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip():
            if self._text.startswith("[[", self._at):
                table = self._header("[[", "]]")
            elif self._text.startswith("[", self._at):
                table = self._header("[", "]")
            else:
                self._pair(table)
        return self._lines

    def _skip(self) -> bool:
        """Past blanks, commas and comments; False at the end."""
        self._take(_BLANK)
        return self._at < len(self._text)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        assert match is not None, f"not TOML at character {self._at}"
        self._at = match.end()
        return match[0]

    def _mark(self, path: Path) -> None:
        line = self._text.count("\n", 0, self._at) + 1
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], line)

    def _key(self) -> list[str]:
        parts = [self._take(_KEY_PART).strip()]
        while self._text.startswith(".", self._at):
            self._at += 1
            parts.append(self._take(_KEY_PART).strip())
        return [tomllib.loads(f"k = {part}")["k"] if part[0] in "\"'" else part for part in parts]

    def _header(self, opening: str, closing: str) -> Path:
        self._at += len(opening)
        path: Path = ()
        parts = self._key()
        for part in parts:
            path = (*path, part)
            if path in self._elements and (len(path) < len(parts) or opening == "["):
                path = (*path, self._elements[path])
        if opening == "[[":
            self._elements[path] = self._elements.get(path, -1) + 1
            path = (*path, self._elements[path])
        self._mark(path)
        self._at += len(closing)
        return path

    def _pair(self, table: Path) -> None:
        start = self._at
        path = (*table, *self._key())
        end, self._at = self._at, start
        self._mark(path)
        self._at = end + 1  # past "="
        self._take(re.compile(r"[ \t]*"))
        self._value(path)

    def _value(self, path: Path) -> None:
        first = self._text[self._at]
        if first in "\"'":
            self._take(_STRING)
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._at += 1
            while self._skip() and self._text[self._at] != "}":
                self._pair(path)
            self._at += 1
        else:
            self._take(_SCALAR)

    def _array(self, path: Path) -> None:
        self._at += 1
        index = 0
        while self._skip() and self._text[self._at] != "]":
            self._mark((*path, index))
            self._value((*path, index))
            index += 1
        self._at += 1
