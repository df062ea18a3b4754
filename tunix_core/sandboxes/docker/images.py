"""Images by name: resolved by plugins, pulled where missing, pinned by digest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tunix_core.errors import SandboxError
from tunix_core.sandboxes.docker.engine import Missing, Refused

log = logging.getLogger(__name__)
Resolve = Callable[[str, str], str | None]
_WAITS_S = (1.0, 5.0, 15.0)  # before another try


class ImageEngine(Protocol):
    """What is asked of an engine."""

    async def inspect(self, image: str) -> Mapping[str, Any]: ...  # raises Missing
    async def pull(self, image: str, platform: str) -> None: ...  # raises Missing, Refused or SandboxError
    async def tag(self, image: str, name: str) -> None: ...


class Images:
    """Finds the image behind each name once, and pulls it when it has to.

    Args:
        engine: has the images.
        platform: as in "linux/amd64".
        resolve: (image, platform) -> another name for it, or None; the hook "tunix_resolve_image".
        pull: whether a missing image is pulled.
        mirror: a registry (host, or host/path) asked before the one a name without a registry means; "" is none.

    Attributes:
        used: the id of each image that was asked for, for the record of a run.
    """

    def __init__(
        self, engine: ImageEngine, platform: str, resolve: Resolve | None = None, *, pull: bool = True, mirror: str = ""
    ) -> None:
        self._engine, self._platform, self._resolve = engine, platform, resolve
        self._pull, self._mirror = pull, mirror.rstrip("/")
        self._found: dict[str, asyncio.Task[str]] = {}
        self.used: dict[str, str] = {}

    async def find(self, image: str) -> str:
        """The id of an image.

        Raises:
            SandboxError: kind "sandbox_image": it is not to be had; says how to get it.
        """
        if not image:
            raise _no_image("a sandbox in a container needs an image: SandboxRequest(image=…); none was given.")
        if image not in self._found:
            self._found[image] = asyncio.ensure_future(self._find(image))
            self._found[image].add_done_callback(lambda task: self._forget_failure(image, task))
        found = await asyncio.shield(self._found[image])
        self.used[image] = found
        return found

    def _forget_failure(self, image: str, task: asyncio.Task[str]) -> None:
        if task.cancelled() or task.exception():
            self._found.pop(image, None)

    async def _find(self, image: str) -> str:
        resolved = None
        if self._resolve is not None:
            resolved = await asyncio.to_thread(self._resolve, image, self._platform)
        name = resolved or image
        try:
            found = await self._engine.inspect(name)
        except Missing:
            found = await self._fetch(name)
        _check_pin(name, found)
        return str(found["Id"])

    async def _fetch(self, name: str) -> Mapping[str, Any]:
        if not self._pull:
            raise _no_image(f"image {name!r} is not on this engine, and pulling is off (pull = false). {_hint(name)}")
        mirrored = f"{self._mirror}/{name}" if self._mirror and not _has_registry(name) else ""
        if mirrored and await self._pulled(mirrored, last=False):
            if "@" not in name:
                await self._engine.tag(mirrored, name)
            return await self._engine.inspect(mirrored)
        await self._pulled(name, last=True)
        return await self._engine.inspect(name)

    async def _pulled(self, name: str, *, last: bool) -> bool:
        """Pulls an image, trying again where that may help. False when it isn't to be had and more can be asked."""
        log.warning("pulling image %s", name)
        for wait_s in (*_WAITS_S, None):
            try:
                await self._engine.pull(name, self._platform)
                return True
            except SandboxError as error:
                final = isinstance(error, Missing) or (isinstance(error, Refused) and 400 <= error.status < 429)
                if (final or wait_s is None) and not last:
                    return False
                if final or wait_s is None:
                    raise _no_image(f"image {name!r} can't be pulled: {error}. {_hint(name)}") from error
                log.warning("pulling %s: %s; trying again in %g s", name, error, wait_s)
                await asyncio.sleep(wait_s)
        return False


def _has_registry(name: str) -> bool:
    """Whether a name says its registry: "host.name/…", "host:5000/…" or "localhost/…"."""
    first, slash, _ = name.partition("/")
    return bool(slash) and (first == "localhost" or "." in first or ":" in first)


def _check_pin(name: str, found: Mapping[str, Any]) -> None:
    """Raises SandboxError when a name has a digest ("name@sha256:…") that the image does not."""
    _, at, digest = name.partition("@")
    if (
        at
        and found["Id"] != digest
        and not any(known.endswith(at + digest) for known in found.get("RepoDigests") or ())
    ):
        raise _no_image(
            f"image {name!r} has another digest here: {found.get('RepoDigests')}. Remove it and pull it anew."
        )


def _hint(name: str) -> str:
    return f"Get it with `docker pull {name}`, `docker load` or `docker build -t {name} …`; see `docker images`."


def _no_image(message: str) -> SandboxError:
    return SandboxError(message, kind="sandbox_image", retry=False)
