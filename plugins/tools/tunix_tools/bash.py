"""`tools/bash`: one shell that lives as long as the sandbox."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from tunix_core.sandboxes import Sandbox, Shell
from tunix_core.tools import SandboxTool, Tool, tool
from tunix_tools.text import MAX_CHARS, told

TIMEOUT_S = 60.0


def bash_in(sandbox: Sandbox, *, timeout_s: float = TIMEOUT_S, max_chars: int = MAX_CHARS) -> Tool:
    """The tool of one sandbox.

    Args:
        timeout_s: seconds a command may take; then it is killed with its shell, and the next has a fresh one.
        max_chars: of output that the policy is shown.
    """
    opening = asyncio.Lock()
    opened: list[Shell] = []

    @tool(
        name="bash",
        description=(
            "Runs a command in a bash that lives on between calls: directory, variables and background jobs are kept. "
            f"A command may take {timeout_s:g} seconds; one that takes longer is killed, and a new shell starts. "
            "Nothing can be typed in: commands read an empty input."
        ),
    )
    async def bash(command: Annotated[str, Field(description="what to run; may have several lines")]) -> str:
        async with opening:
            if not opened:
                opened.append(await sandbox.shell())
        result = await opened[0].run(command, timeout_s=timeout_s)
        return told(result, timeout_s, max_chars)

    return bash


bash = SandboxTool(bash_in)
