"""What this package registers."""

from __future__ import annotations

from typing import Any

from tunix_core import ToolSpec, hookimpl


@hookimpl
def tunix_register_tools(register: Any) -> None:
    for spec in SPECS:
        register(spec)


SPECS = (
    ToolSpec("tools/bash", "tunix_tools.bash:bash", "commands in one shell that lives on"),
    ToolSpec("tools/edit", "tunix_tools.edit:edit", "view, create and change text files; undo"),
    ToolSpec("tools/search", "tunix_tools.search:search", "lines that match a regular expression"),
    ToolSpec("tools/python", "tunix_tools.python:python", "run a Python program"),
    ToolSpec("tools/submit", "tunix_tools.submit:submit", "end the episode with the diff of the work tree"),
)
