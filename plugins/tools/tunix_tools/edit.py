"""`tools/edit`: text files, and a way back."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from tunix_core.sandboxes import Sandbox
from tunix_core.tools import SandboxTool, Tool, ToolError, tool
from tunix_tools.text import MAX_CHARS, decoded, shortened

LONGEST_FILE = 1 << 20
UNDOS = 10  # of one file
_LIST_S = 20.0
Action = Literal["view", "create", "replace", "insert", "undo"]

DESCRIPTION = """Views and changes text files. action:
view: shows PATH with line numbers, or from line `first` to line `last`; lists a directory.
create: makes the new file PATH with `text`.
replace: puts `text` where `old` stands, which must stand there exactly once.
insert: puts `text` after line `first` (0: at the top).
undo: takes the last change of PATH back."""


def edit_in(sandbox: Sandbox, *, max_chars: int = MAX_CHARS) -> Tool:
    """The tool of one sandbox; it keeps what each file was before its last changes.

    Args:
        max_chars: of a file that the policy is shown at once.
    """
    editor = Editor(sandbox, max_chars)

    @tool(name="edit", description=DESCRIPTION)
    async def edit(
        action: Action,
        path: Annotated[str, Field(description="a file or directory")],
        text: str = "",
        old: str = "",
        first: int | None = None,
        last: int | None = None,
    ) -> str:
        doing: dict[str, Callable[[], Awaitable[str]]] = {
            "view": lambda: editor.view(path, first, last),
            "create": lambda: editor.create(path, text),
            "replace": lambda: editor.replace(path, old, text),
            "insert": lambda: editor.insert(path, first, text),
            "undo": lambda: editor.undo(path),
        }
        try:
            return await doing[action]()
        except (OSError, ValueError) as error:
            raise ToolError(_reason(path, error)) from error

    return edit


class Editor:
    """Changes files of one sandbox. Every method says in words what is there or what it did."""

    def __init__(self, sandbox: Sandbox, max_chars: int) -> None:
        self._sandbox, self._max_chars = sandbox, max_chars
        self._before: defaultdict[str, deque[bytes | None]] = defaultdict(lambda: deque(maxlen=UNDOS))

    async def view(self, path: str, first: int | None, last: int | None) -> str:
        try:
            lines = (await self._text(path)).splitlines()
        except IsADirectoryError:
            return await self._listed(path)
        start = max(1, first or 1)
        if lines and start > len(lines):
            raise ToolError(f"{path} has {len(lines)} lines; there is no line {start}")
        chosen = lines[start - 1 : last]
        text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(chosen, start))
        return shortened(decoded(text.encode(errors="surrogateescape")), self._max_chars) or "[the file is empty]"

    async def create(self, path: str, text: str) -> str:
        try:
            await self._sandbox.read(path, max_bytes=0)
        except FileNotFoundError:
            await self._change(path, None, text)
            return f"{path} is created."
        except ValueError:
            pass  # it holds something
        raise ToolError(f"{path} is there already; change it with replace or insert")

    async def replace(self, path: str, old: str, new: str) -> str:
        if not old:
            raise ToolError("replace needs `old`, the text to be replaced")
        text = await self._text(path)
        count = text.count(old)
        if count != 1:
            raise ToolError(_not_once(text, old, count, path))
        at = text.index(old)
        await self._change(path, text, text[:at] + new + text[at + len(old) :])
        return f"{path} is changed in line {text.count(chr(10), 0, at) + 1}."

    async def insert(self, path: str, after: int | None, new: str) -> str:
        text = await self._text(path)
        lines = text.splitlines(keepends=True)
        if after is None or not 0 <= after <= len(lines):
            raise ToolError(f"insert needs `first`, a line from 0 to {len(lines)} of {path}; given was {after}")
        if after and not lines[after - 1].endswith("\n"):
            lines[after - 1] += "\n"
        added = new if new.endswith("\n") or after == len(lines) else f"{new}\n"
        await self._change(path, text, "".join([*lines[:after], added, *lines[after:]]))
        return f"{path} has {added.count(chr(10)) or 1} more lines after line {after}."

    async def undo(self, path: str) -> str:
        if not self._before[path]:
            raise ToolError(f"there is no change of {path} to undo")
        before = self._before[path].pop()
        if before is not None:
            await self._sandbox.write(path, before)
            return f"the last change of {path} is taken back."
        await self._sandbox.exec(["rm", "-f", "--", path], timeout_s=_LIST_S)
        return f"{path} is removed again."

    async def _text(self, path: str) -> str:
        return (await self._sandbox.read(path, max_bytes=LONGEST_FILE)).decode(errors="surrogateescape")

    async def _change(self, path: str, before: str | None, after: str) -> None:
        await self._sandbox.write(path, after.encode(errors="surrogateescape"))
        self._before[path].append(None if before is None else before.encode(errors="surrogateescape"))

    async def _listed(self, path: str) -> str:
        command = ["find", path, "-maxdepth", "2", "-not", "-path", "*/.*"]
        result = await self._sandbox.exec(command, timeout_s=_LIST_S)
        names = sorted(decoded(result.stdout).splitlines())
        return shortened("\n".join(names), self._max_chars) or f"{path} is a directory"


def _not_once(text: str, old: str, count: int, path: str) -> str:
    if not count:
        return f"`old` does not stand in {path}; view it and copy the text exactly, spaces included"
    lines, at = [], text.find(old)
    while at >= 0:
        lines.append(str(text.count("\n", 0, at) + 1))
        at = text.find(old, at + 1)
    return f"`old` stands in {path} {count} times, in lines {', '.join(lines[:20])}; give more of the text around it"


def _reason(path: str, error: Any) -> str:
    if isinstance(error, FileNotFoundError):
        return f"there is no {path}"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a directory"
    if isinstance(error, PermissionError):
        return f"{path} may not be changed or read"
    return str(error)


edit = SandboxTool(edit_in)
