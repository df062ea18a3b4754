"""Where finished groups wait for the trainer: bounded, versioned; what is too stale is dropped and counted.

Takes groups, gives groups. Lives on one event loop; does not know who makes groups or what becomes of them.

The bound is per suite: a fast suite that fills its share can't keep a slow suite's group out. To choose
`capacity`: what waits here ages, so no more than a step or two takes of one suite.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tunix_core.types import Group, Trajectory, within_bound

DEFAULT_MIN_GROUP = 2


class TrajectoryQueue:
    """A bounded queue of groups, for any number of producers and one consumer on the same event loop.

    Args:
        capacity: groups of one suite that may wait, at least 1.
        max_staleness: versions a trained token may be behind, at least 0.
        on_stale: receives a group, as it came, of which too little is left; its task is to go back.
        min_group: survivors with which a group still trains, by suite; 2 where not given.
        ordered: gives each suite's groups in the order of their index, waiting for each. Which suite
            comes next is the consumer's to say.
        first: the first index of each suite in ordered mode; 0 where not given.
        clock: seconds.
    """

    def __init__(
        self,
        capacity: int,
        max_staleness: int,
        on_stale: Callable[[Group], None],
        *,
        min_group: Mapping[str, int] | None = None,
        ordered: bool = False,
        first: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1 or max_staleness < 0:
            raise ValueError(f"capacity {capacity} must be at least 1, max_staleness {max_staleness} at least 0")
        self._capacity, self._max_staleness, self._on_stale = capacity, max_staleness, on_stale
        self._min_group, self._ordered, self._clock = min_group or {}, ordered, clock
        self._turns = Counter(first or {})
        self._skipped: set[tuple[str, int]] = set()
        self._waiting: list[tuple[Group, float]] = []  # and when each came; in the order they came
        self._changed = asyncio.Event()
        self._put = self._taken = self._dropped = self._returned = 0

    async def put(self, group: Group) -> None:
        """Adds a group; waits while its suite is full. In ordered mode the group whose turn it is never waits.

        Raises:
            ValueError: in ordered mode, a group whose turn is over.
        """
        while self._size(group.suite) >= self._capacity and not (self._ordered and self._is_next(group)):
            await self._changed.wait()
        if self._ordered and group.index < self._turns[group.suite]:
            raise ValueError(f"{group.suite}#{group.index} came after its turn; next is {self._turns[group.suite]}")
        self._waiting.append((group, self._clock()))
        self._put += 1
        self._notify()

    def take(self, wanted: Collection[str], version: int) -> Group | None:
        """The group of a wanted suite that came first and can be trained at `version`, or None.

        Trajectories beyond the bound are dropped from it, whole; a group left with too few survivors
        goes to `on_stale`, and the next is looked at. In ordered mode, only groups whose turn it is.
        """
        while (found := self._first_of(wanted)) is not None:
            self._waiting = [entry for entry in self._waiting if entry[0] is not found]
            fresh = self._within_bound(found, version)
            if fresh is not None:
                self._taken += 1
                self._pass_turn(found.suite, found.index)
                return fresh
            self._returned += 1
            self._notify()
            self._on_stale(found)
        return None

    async def get(self, wanted: Collection[str], version: int) -> Group:
        """`take`, waiting until there is one. Bound the wait with `asyncio.timeout`."""
        while (group := self.take(wanted, version)) is None:
            await self._changed.wait()
        return group

    def skip(self, suite: str, index: int) -> None:
        """In ordered mode: the group of this index will never come; the next need not wait for it."""
        self._pass_turn(suite, index)

    def waiting(self) -> tuple[Group, ...]:
        """All groups that wait, in the order they came."""
        return tuple(group for group, _ in self._waiting)

    def statistics(self) -> Mapping[str, float]:
        """Sizes ("size", "size/SUITE"), the oldest wait in seconds, and what was put, taken, dropped, returned."""
        sizes = Counter(f"size/{group.suite}" for group, _ in self._waiting)
        return {
            "size": len(self._waiting),
            **sizes,
            "oldest_age_s": self._clock() - self._waiting[0][1] if self._waiting else 0.0,
            "put": self._put,
            "taken": self._taken,
            "dropped_trajectories": self._dropped,
            "returned_groups": self._returned,
        }

    def _size(self, suite: str) -> int:
        return sum(group.suite == suite for group, _ in self._waiting)

    def _is_next(self, group: Group) -> bool:
        return group.index == self._turns[group.suite]

    def _first_of(self, wanted: Collection[str]) -> Group | None:
        ready = (group for group, _ in self._waiting if not self._ordered or self._is_next(group))
        return next((group for group in ready if group.suite in wanted), None)

    def _pass_turn(self, suite: str, index: int) -> None:
        """Notes that an index is done with; turns go on to the first that is not."""
        if self._ordered:
            self._skipped.add((suite, index))
            while (turn := (suite, self._turns[suite])) in self._skipped:
                self._skipped.remove(turn)
                self._turns[suite] += 1
        self._notify()

    def _within_bound(self, group: Group, version: int) -> Group | None:
        """The group without what is too stale, or None when that leaves too little."""
        kept = tuple(t for t in group.trajectories if self._is_fresh(t, version))
        if len(kept) == len(group.trajectories):
            return group
        self._dropped += len(group.trajectories) - len(kept)
        left = replace(group, trajectories=kept)
        enough = len(left.survivors) >= self._min_group.get(group.suite, DEFAULT_MIN_GROUP)
        return left if enough else None

    def _is_fresh(self, trajectory: Trajectory, version: int) -> bool:
        oldest = trajectory.oldest_version
        return oldest is None or within_bound(oldest, version, self._max_staleness)

    def _notify(self) -> None:
        """Wakes all who wait; each looks again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
