"""`tools/submit`: the work is done; what changed is the answer."""

from __future__ import annotations

from tunix_core.sandboxes import Sandbox, SandboxError
from tunix_core.tools import SandboxTool, Tool, ToolError, as_tool

MAX_BYTES = 10 << 20
TIMEOUT_S = 60.0
# To a file, since a command's output is cut where it is long. What the work tree's own configuration would have
# run, it could have run before; but it must not change what the diff says.
_DIFF = """cd -- "$1" && git add -A &&
git -c core.quotePath=false diff --cached --binary --no-color --no-ext-diff --no-textconv HEAD > "$2" """


def submit_in(sandbox: Sandbox, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES) -> Tool:
    """The tool of one sandbox, whose work tree is a git repository; its result is the diff against HEAD.

    Args:
        max_bytes: of the diff; a longer one is not accepted, and the episode goes on.
    """

    async def submit() -> str:
        """Hands in the work tree as it is, and ends the episode."""
        patch = "/tmp/submitted.patch"
        result = await sandbox.exec(["/bin/sh", "-c", _DIFF, "sh", ".", patch], timeout_s=timeout_s)
        if not result.ok:
            why = "it took too long" if result.timed_out else result.stderr.decode(errors="replace").strip()[:500]
            raise ToolError(f"the changes can't be collected: {why}")
        try:
            data = await sandbox.read(patch, max_bytes=max_bytes)
        except ValueError as error:
            raise ToolError(
                f"the changes are more than {max_bytes} bytes; remove what does not belong to the work"
            ) from error
        except OSError as error:
            raise SandboxError(f"the submitted changes can't be read: {error}") from error
        return data.decode(errors="surrogateescape")

    made = as_tool(submit)
    return Tool(made.name, made.description, made.parameters, made.fn, made.check, final=True)


submit = SandboxTool(submit_in)
