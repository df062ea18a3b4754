"""`tools/python`: a program in a process of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tunix_core.sandboxes import Sandbox
from tunix_core.tools import SandboxTool, Tool, tool
from tunix_tools.text import MAX_CHARS, told

TIMEOUT_S = 60.0


def python_in(sandbox: Sandbox, *, timeout_s: float = TIMEOUT_S, max_chars: int = MAX_CHARS) -> Tool:
    """The tool of one sandbox, whose image has a `python3`.

    Args:
        timeout_s: seconds a program may take.
        max_chars: of output that the policy is shown.
    """

    @tool(
        name="python",
        description=(
            "Runs a Python program in the work tree and shows what it prints. Each call is a new process. "
            f"It may take {timeout_s:g} seconds."
        ),
    )
    async def python(code: Annotated[str, Field(description="the program")]) -> str:
        source = code.encode(errors="surrogatepass")
        result = await sandbox.exec(["python3", "-"], stdin=source, timeout_s=timeout_s)
        return told(result, timeout_s, max_chars)

    return python


python = SandboxTool(python_in)
