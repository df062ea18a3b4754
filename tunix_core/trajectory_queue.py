"""Where finished groups wait for the trainer: bounded, versioned; what is too stale is dropped and counted.

Takes groups, gives groups. Lives on one event loop; does not know who makes groups or what becomes of them.

The bound is per suite: a fast suite that fills its share can't keep a slow suite's group out. To choose
`capacity`: what waits here ages, so no more than the steps within `max_staleness` take of one suite.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tunix_core.profiling import note, span
from tunix_core.types import Group, Trajectory, within_bound

DEFAULT_MIN_GROUP = 2
Accepts = Callable[[Group], bool]
OnStale = Callable[[Group], None]
Barrier = Callable[[Sequence[Group]], str]


class TrajectoryQueue:
    """A bounded queue of groups, for any number of producers and one consumer on the same event loop.

    Args:
        capacity: groups of one suite that may wait, at least 1.
        max_staleness: versions a trained token may be behind, at least 0.
        min_group: survivors with which a group still trains after some were dropped, by suite; 2 where
            not given.
        waiting: groups that wait from the start, in order.
        clock: seconds.
    """

    def __init__(
        self,
        capacity: int,
        max_staleness: int,
        *,
        min_group: Mapping[str, int] | None = None,
        waiting: Sequence[Group] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1 or max_staleness < 0:
            raise ValueError(f"capacity {capacity} must be at least 1, max_staleness {max_staleness} at least 0")
        self._capacity, self._max_staleness = capacity, max_staleness
        self._min_group, self._clock = min_group or {}, clock
        self._entries = [(group, clock()) for group in waiting]  # and when each came; in the order they came
        self._oldest = {id(group): _oldest(group) for group in waiting}  # their oldest tokens' versions
        self._changed = asyncio.Event()
        self._put, self._taken, self._dropped, self._returned = len(waiting), 0, 0, 0

    async def put(self, group: Group) -> None:
        """Adds a group; waits while its suite is full."""
        while self.waiting_of(group.suite) >= self._capacity:
            await self._changed.wait()
        self._entries.append((group, self._clock()))
        self._oldest[id(group)] = _oldest(group)
        self._put += 1
        self.look_again()

    def take(self, accepts: Accepts, version: int, on_stale: OnStale) -> Group | None:
        """The accepted group that came first, without what is too stale to be trained at `version`; or None.

        Trajectories beyond the bound are dropped from it, whole. Every waiting group, accepted or not,
        of which that leaves too little goes to `on_stale` as it came: its task is to go back.
        """
        for group in self.waiting():
            if self._within_bound(group, version) is None:
                self._remove(group)
                self._returned += 1
                on_stale(group)
        found = next(filter(accepts, self.waiting()), None)
        fresh = found and self._within_bound(found, version)
        if found is None or fresh is None:
            return None
        self._remove(found)
        self._taken += 1
        self._dropped += len(found.trajectories) - len(fresh.trajectories)
        return fresh

    async def get(
        self,
        accepts: Accepts,
        version: int,
        on_stale: OnStale,
        barrier: Barrier = lambda waiting: "wait.groups",
    ) -> Group:
        """`take`, waiting until there is one. Bound the wait with `asyncio.timeout`.

        `barrier` names the span of a wait, given the groups that were not accepted.
        """
        while (group := self.take(accepts, version, on_stale)) is None:
            with span(barrier(self.waiting())):
                await self._changed.wait()
        return group

    def look_again(self) -> None:
        """Wakes all who wait: something came or went, or what a consumer accepts has changed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def waiting(self) -> tuple[Group, ...]:
        """All groups that wait, in the order they came."""
        return tuple(group for group, _ in self._entries)

    def waiting_of(self, suite: str) -> int:
        """How many groups of a suite wait."""
        return sum(group.suite == suite for group, _ in self._entries)

    def statistics(self) -> Mapping[str, float]:
        """Sizes ("size", "size/SUITE"), the oldest wait in seconds, and what was put, taken, dropped, returned.

        "dropped_trajectories" are those left out of groups that were taken.
        """
        sizes = Counter(f"size/{group.suite}" for group, _ in self._entries)
        return {
            "size": len(self._entries),
            **sizes,
            "oldest_age_s": self._clock() - self._entries[0][1] if self._entries else 0.0,
            "put": self._put,
            "taken": self._taken,
            "dropped_trajectories": self._dropped,
            "returned_groups": self._returned,
        }

    def _remove(self, group: Group) -> None:
        came = next(since for entry, since in self._entries if entry is group)
        note("queue", self._clock() - came, suite=group.suite, group=group.index)
        self._entries = [entry for entry in self._entries if entry[0] is not group]
        del self._oldest[id(group)]
        self.look_again()

    def _within_bound(self, group: Group, version: int) -> Group | None:
        """The group without what is too stale, or None when that leaves too little."""
        oldest = self._oldest[id(group)]
        if oldest is None or within_bound(oldest, version, self._max_staleness):
            return group
        kept = tuple(t for t in group.trajectories if self._is_fresh(t, version))
        if len(kept) == len(group.trajectories):
            return group
        left = replace(group, trajectories=kept)
        enough = len(left.survivors) >= self._min_group.get(group.suite, DEFAULT_MIN_GROUP)
        return left if enough else None

    def _is_fresh(self, trajectory: Trajectory, version: int) -> bool:
        oldest = trajectory.oldest_version
        return oldest is None or within_bound(oldest, version, self._max_staleness)


def _oldest(group: Group) -> int | None:
    versions = [oldest for t in group.trajectories if (oldest := t.oldest_version) is not None]
    return min(versions, default=None)
