"""`tools/search`: lines of files that match."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tunix_core.sandboxes import Sandbox
from tunix_core.tools import SandboxTool, Tool, ToolError, tool
from tunix_tools.text import decoded

TIMEOUT_S = 30.0
MOST_LINES = 100
LONGEST_LINE = 300


def search_in(sandbox: Sandbox, *, timeout_s: float = TIMEOUT_S) -> Tool:
    """The tool of one sandbox, whose image has GNU grep or busybox's."""

    @tool(
        name="search",
        description=f"Finds lines in the files of the work tree; shows at most {MOST_LINES} as FILE:LINE:TEXT.",
    )
    async def search(
        pattern: Annotated[str, Field(description="an extended regular expression")],
        path: Annotated[str, Field(description="a directory or file")] = ".",
        files: Annotated[str, Field(description="only files of such names, e.g. *.py")] = "*",
    ) -> str:
        command = ["grep", "-rnIE", "--exclude-dir=.git", f"--include={files}", "-e", pattern, "--", path]
        result = await sandbox.exec(command, timeout_s=timeout_s)
        if result.timed_out:
            raise ToolError(f"the search took longer than {timeout_s:g} s; search a smaller path")
        if result.exit_code == 1 or not (result.stdout or result.stderr):
            return "No line matches."
        if not result.stdout:
            raise ToolError(decoded(result.stderr).strip()[:500])
        return shown(decoded(result.stdout))

    return search


def shown(output: str) -> str:
    """The first lines, each cut where it is long, and how many there are besides."""
    lines = output.splitlines()
    kept = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in lines[:MOST_LINES]]
    more = len(lines) - len(kept)
    return "\n".join([*kept, *([f"[{more} more lines match; narrow the pattern]"] if more else [])])


search = SandboxTool(search_in)
