"""A function becomes a tool: schema, parsing, calling.

Does not know environments or conversations.
"""

from tunix_core.errors import ToolError
from tunix_core.tools.calling import abandoned_calls, call_tool, call_tools, read_arguments, to_text, try_tool
from tunix_core.tools.tool import BaseTool, SandboxTool, Tool, ToolOutput, as_tool, tool

__all__ = [
    "BaseTool",
    "SandboxTool",
    "Tool",
    "ToolError",
    "ToolOutput",
    "abandoned_calls",
    "as_tool",
    "call_tool",
    "call_tools",
    "read_arguments",
    "to_text",
    "tool",
    "try_tool",
]
