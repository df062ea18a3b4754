"""A Docker engine through its SDK. Every call is made in a thread, none on the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self, TypeVar

from tunix_core.errors import SandboxError, UsageError

try:
    import docker
    from docker.errors import APIError, DockerException, NotFound
    from docker.utils import kwargs_from_env
    from requests.exceptions import RequestException
except ModuleNotFoundError as error:
    raise UsageError(
        f"sandboxes/docker needs the Python package {error.name!r}. Try: pip install 'tunix-core[docker]'"
    ) from error

T = TypeVar("T")
CALL_S = 120  # the longest an engine under load may take to answer
THREADS = 16
USUAL = "unix:///var/run/docker.sock"


class Engine:
    """Calls one engine, that of DOCKER_HOST or else of this machine.

    Args:
        threads: how many calls are under way at once; more wait their turn, in order.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tunix-docker")
        self._size = threads
        self._api: docker.APIClient | None = None

    async def call(self, fn: Callable[[docker.APIClient], T]) -> T:
        """`fn(api)` in a thread.

        Raises:
            Missing: what it speaks of is not there.
            SandboxError: anything else the engine refuses, or it does not answer.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: self.call_here(fn))

    def call_here(self, fn: Callable[[docker.APIClient], T]) -> T:
        """The same in this thread."""
        try:
            return fn(self.connect())
        except NotFound as error:
            raise Missing(_said(error)) from error
        except APIError as error:
            raise Refused(_said(error), error.status_code or 0) from error
        except (DockerException, RequestException, OSError) as error:
            raise SandboxError(f"the Docker engine does not answer: {error}") from error

    def connect(self) -> docker.APIClient:
        """The client of the SDK. Raises UsageError when there is no engine."""
        if self._api is None:
            where: Mapping[str, Any] = kwargs_from_env()
            try:
                _knock(where.get("base_url") or USUAL)
                self._api = docker.APIClient(**where, version="auto", timeout=CALL_S, max_pool_size=self._size)
            except (DockerException, OSError) as error:
                raise UsageError(
                    f"no Docker engine answers at {where.get('base_url') or USUAL}: {error}. "
                    "Start it (`dockerd`, Docker Desktop, `systemctl start docker`), or set DOCKER_HOST, until "
                    "`docker info` works. "
                    'Without one, [sandbox] kind = "sandboxes/local" runs commands unisolated.'
                ) from error
        return self._api

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        if self._api is not None:
            self._api.close()


class Missing(SandboxError):
    """A container or image that the engine does not have."""


class Refused(SandboxError):
    """What the engine was asked for and will not do; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def _knock(url: str) -> None:
    """Raises OSError when nobody listens at a unix:// address. (The SDK finds out as well, and leaks a socket.)"""
    if path := url.partition("unix://")[2]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)


def plain_socket(given: Any) -> socket.socket:
    """The socket behind what the SDK gives for a stream, on its own from then on.

    Raises:
        UsageError: the stream is not a plain socket, which it is for unix:// and tcp://.
    """
    if not isinstance(given, socket.SocketIO):
        raise UsageError(
            "commands can be streamed from a Docker engine at unix:// or tcp:// only, not over TLS or ssh://. Forward "
            "its socket (`ssh -L /tmp/docker.sock:/var/run/docker.sock HOST`) and set DOCKER_HOST=unix:///tmp/docker.sock"
        )
    sock = socket.socket(fileno=os.dup(given.fileno()))
    response = getattr(given, "_response", None)  # the SDK keeps there what holds the connection
    if response is not None:
        response.close()
    return sock


def remove_container(api: docker.APIClient, identity: str) -> None:
    """Removes a container with all that runs in it, and waits until it is gone."""
    try:
        api.remove_container(identity, force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if "already in progress" not in _said(error):
            raise
        with suppress(NotFound):  # the engine is at it by itself, since the first process has ended
            api.wait(identity, condition="removed", timeout=CALL_S)


def _said(error: APIError) -> str:
    return str(error.explanation or error)
