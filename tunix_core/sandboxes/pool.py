"""Keeps some of each kind ready, never used before. Knows neither engines nor containers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from tunix_core.errors import SandboxError, UsageError
from tunix_core.sandboxes.demand import Demand

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_MAKERS = 2  # made ahead at once, so that episodes under way keep most of the machine


class Pool(Generic[K, T]):
    """Gives a fresh item of a kind: one that was made ahead, or a new one.

    Args:
        make: makes an item of a kind; cancelled, it leaves nothing behind.
        discard: ends one that was never used; raises nothing.
        usable: whether one that waited can still be given.
        most: how many of one kind wait at most.
    """

    def __init__(
        self,
        make: Callable[[K], Awaitable[T]],
        discard: Callable[[T], Awaitable[None]],
        usable: Callable[[T], bool],
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._discard, self._usable, self._most, self._clock = make, discard, usable, most, clock
        self._idle: dict[K, deque[T]] = {}
        self._demand: dict[K, Demand] = {}
        self._making: dict[K, int] = {}
        self._gate = asyncio.Semaphore(_MAKERS)
        self._makers: set[asyncio.Task[None]] = set()
        self._enders: set[asyncio.Task[None]] = set()
        self._closed = False
        self.warm_starts = self.cold_starts = 0

    async def take(self, kind: K) -> T:
        """An item of this kind, which is the caller's from now on. Raises what `make` raises."""
        if self._closed:
            raise SandboxError("the pool is closed")
        self._demand.setdefault(kind, Demand(self._most)).note(self._clock())
        try:
            while idle := self._idle.get(kind):
                item = idle.popleft()
                if self._usable(item):
                    self.warm_starts += 1
                    return item
                _spawn(self._discard(item), self._enders)
            self.cold_starts += 1
            return await self._make(kind)
        finally:
            self.adjust()

    @property
    def waiting(self) -> int:
        """How many are ready."""
        return sum(map(len, self._idle.values()))

    @property
    def making(self) -> int:
        """How many are being made ahead."""
        return sum(self._making.values())

    def adjust(self) -> None:
        """Makes ahead what is asked for, and ends what isn't any longer. Call it now and then."""
        for kind, demand in self._demand.items():
            target, idle = demand.target(self._clock()), self._idle.setdefault(kind, deque())
            for _ in range(target - len(idle) - self._making.get(kind, 0)):
                self._making[kind] = self._making.get(kind, 0) + 1
                _spawn(self._make_ahead(kind), self._makers)
            while len(idle) > target:
                _spawn(self._discard(idle.pop()), self._enders)

    async def _make_ahead(self, kind: K) -> None:
        try:
            async with self._gate:
                if self._closed:
                    return
                item = await self._make(kind)
            if self._closed:
                await self._discard(item)
            else:
                self._idle.setdefault(kind, deque()).append(item)
        except (SandboxError, UsageError) as error:  # whoever asks for one is told
            log.debug("making a sandbox ahead: %s", error)
        finally:
            self._making[kind] -= 1

    async def aclose(self) -> None:
        """Ends what is ready, and what is being made."""
        self._closed = True
        for task in self._makers:
            task.cancel()
        if under_way := self._makers | self._enders:
            await asyncio.wait(under_way)
        left = [item for idle in self._idle.values() for item in idle]
        self._idle.clear()
        await asyncio.gather(*(self._discard(item) for item in left))


def _spawn(work: Awaitable[None], tasks: set[asyncio.Task[None]]) -> None:
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
