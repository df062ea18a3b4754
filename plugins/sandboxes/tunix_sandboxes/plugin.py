"""What this package registers."""

from __future__ import annotations

from typing import Any

from tunix_core import Option, SandboxSpec, hookimpl


@hookimpl
def tunix_register_sandboxes(register: Any) -> None:
    for spec in SPECS:
        register(spec)


SPECS = (
    SandboxSpec(
        "sandboxes/docker",
        "tunix_core.sandboxes.docker:DockerSandboxes",
        "containers of a Docker engine: no network, no root, limits, nothing left behind",
        {
            "max_open": Option(64, "containers in use at once; more wait"),
            "max_warm": Option(8, "containers of one kind that wait ready, at most"),
            "pull": Option(True, "pull an image that is not there"),
            "mirror": Option("", "a registry asked first for images whose name has none"),
        },
    ),
    SandboxSpec(
        "sandboxes/local",
        "tunix_core.sandboxes.local:LocalSandboxes",
        "temporary directories on this machine; does NOT isolate",
    ),
)
