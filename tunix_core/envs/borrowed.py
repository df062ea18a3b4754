"""What one episode opened of sandboxes, so that all of it is closed with the episode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tunix_core.contracts import Sandbox, Sandboxes, SandboxRequest
from tunix_core.errors import SandboxError

log = logging.getLogger(__name__)
CLOSE_S = 180.0  # longer than an engine of containers under load may take to answer


class Borrowed:
    """The run's sandboxes as one episode has them; satisfies `contracts.Sandboxes`.

    Args:
        provider: who opens them.
    """

    def __init__(self, provider: Sandboxes) -> None:
        self._provider = provider
        self.isolates = provider.isolates
        self._opened: list[Sandbox] = []
        self._ended = False

    async def start(self) -> str:
        return await self._provider.start()

    async def open(self, request: SandboxRequest) -> Sandbox:
        if self._ended:
            raise SandboxError("the episode is over; it can't open another sandbox", retry=False)
        sandbox = await self._provider.open(request)
        self._opened.append(sandbox)
        if self._ended:  # it ended while this one was opening
            await self.aclose()
            raise SandboxError("the episode ended while its sandbox was opening", retry=False)
        return sandbox

    @property
    def first(self) -> Sandbox | None:
        """The first that was opened and is not closed."""
        return next((sandbox for sandbox in self._opened if not sandbox.closed), None)

    async def aclose(self) -> None:
        """Closes what the episode opened; the provider goes on.

        Raises nothing, and returns within CLOSE_S: what can't be closed, or not in time, is logged and its provider's.
        """
        self._ended = True
        closings = [asyncio.ensure_future(sandbox.close()) for sandbox in self._opened]
        done, late = await asyncio.wait(closings, timeout=CLOSE_S) if closings else ((), ())
        for closing in done:
            if (error := closing.exception()) is not None:
                log.warning("a sandbox could not be closed and is left to its provider: %s", error)
        if late:
            log.warning("%d sandboxes were not closed within %g s and are left to their provider", len(late), CLOSE_S)

    async def identify(self, image: str) -> str:
        return await self._provider.identify(image)

    def used_images(self) -> Mapping[str, str]:
        return self._provider.used_images()

    def statistics(self) -> Mapping[str, float]:
        return self._provider.statistics()
