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
from typing import NamedTuple

from tunix_core.profiling import note, span
from tunix_core.types import Group, Trajectory, within_bound

DEFAULT_MIN_GROUP = 2
Accepts = Callable[[Group], bool]
OnStale = Callable[[Group], None]
Barrier = Callable[[Sequence[Group]], str]


class _Waiting(NamedTuple):
    """A group, when it came, and the version of its oldest token."""

    group: Group
    since: float
    oldest: int | None


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
        self._entries: dict[int, _Waiting] = {}  # by the group's identity, in the order they came
        self._sizes: Counter[str] = Counter()  # by suite
        self._changed = asyncio.Event()
        self._put, self._taken, self._dropped, self._returned = 0, 0, 0, 0
        for group in waiting:
            self._add(group)

    async def put(self, group: Group) -> None:
        """Adds a group; waits while its suite is full."""
        while self.waiting_of(group.suite) >= self._capacity:
            await self._changed.wait()
        self._add(group)
        self.look_again()

    def take(self, accepts: Accepts, version: int, on_stale: OnStale) -> Group | None:
        """The accepted group that came first, without what is too stale to be trained at `version`; or None.

        Trajectories beyond the bound are dropped from it, whole. Every waiting group, accepted or not,
        of which that leaves too little goes to `on_stale` as it came: its task is to go back.
        """
        for entry in [each for each in self._entries.values() if self._is_old(each, version)]:
            if self._fresh(entry.group, version) is None:
                self._remove(entry)
                self._returned += 1
                on_stale(entry.group)
        found = next((each for each in self._entries.values() if accepts(each.group)), None)
        if found is None:
            return None
        fresh = self._fresh(found.group, version) if self._is_old(found, version) else found.group
        assert fresh is not None  # or it would have been returned above
        self._remove(found)
        self._taken += 1
        self._dropped += len(found.group.trajectories) - len(fresh.trajectories)
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
        return tuple(entry.group for entry in self._entries.values())

    def waiting_of(self, suite: str) -> int:
        """How many groups of a suite wait."""
        return self._sizes[suite]

    def statistics(self) -> Mapping[str, float]:
        """Sizes ("size", "size/SUITE"), the oldest wait in seconds, and what was put, taken, dropped, returned.

        "dropped_trajectories" are those left out of groups that were taken.
        """
        first = next(iter(self._entries.values()), None)
        return {
            "size": len(self._entries),
            **{f"size/{suite}": size for suite, size in self._sizes.items() if size},
            "oldest_age_s": self._clock() - first.since if first else 0.0,
            "put": self._put,
            "taken": self._taken,
            "dropped_trajectories": self._dropped,
            "returned_groups": self._returned,
        }

    def _add(self, group: Group) -> None:
        self._entries[id(group)] = _Waiting(group, self._clock(), _oldest(group))
        self._sizes[group.suite] += 1
        self._put += 1

    def _remove(self, entry: _Waiting) -> None:
        group = entry.group
        note("queue", self._clock() - entry.since, suite=group.suite, group=group.index)
        del self._entries[id(group)]
        self._sizes[group.suite] -= 1
        self.look_again()

    def _is_old(self, entry: _Waiting, version: int) -> bool:
        """Whether some of the group is too stale."""
        return entry.oldest is not None and not within_bound(entry.oldest, version, self._max_staleness)

    def _fresh(self, group: Group, version: int) -> Group | None:
        """The group without what is too stale, or None when that leaves too little."""
        left = replace(group, trajectories=tuple(t for t in group.trajectories if self._is_fresh(t, version)))
        enough = len(left.survivors) >= self._min_group.get(group.suite, DEFAULT_MIN_GROUP)
        return left if enough else None

    def _is_fresh(self, trajectory: Trajectory, version: int) -> bool:
        oldest = trajectory.oldest_version
        return oldest is None or within_bound(oldest, version, self._max_staleness)


def _oldest(group: Group) -> int | None:
    versions = [oldest for t in group.trajectories if (oldest := t.oldest_version) is not None]
    return min(versions, default=None)
