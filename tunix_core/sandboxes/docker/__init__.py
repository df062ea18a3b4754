"""Sandboxes in containers of a Docker engine. Needs the extra [docker]."""

from tunix_core.sandboxes.docker.provider import DockerSandboxes

__all__ = ["DockerSandboxes"]
