"""The tasks of one suite by ticket: taken, consumed or given back, and saved between.

A ticket is the place of a task in the suite's order. Which task that is follows from (seed, ticket)
alone, so what has to be saved is the next ticket and those that were given out and not consumed.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from tunix_core.contracts import TaskSource
from tunix_core.errors import CheckpointError, SuiteStarved, UsageError
from tunix_core.tasks.order import permuted
from tunix_core.tasks.sources import length_of
from tunix_core.types import Task

_ENDLESS_SKIPS = 100_000  # quarantined tasks in a row, after which an endless source is given up


class TaskStream:
    """A cursor over one source.

    A finite source is gone through once per epoch, in an order drawn for that epoch; an endless one
    in its own order. Every ticket is consumed exactly once, over restarts too.

    Args:
        source: the tasks of one split.
        seed: decides the order.

    Raises:
        UsageError: when the source is empty.
    """

    def __init__(self, source: TaskSource, *, seed: int) -> None:
        self._source, self._seed = source, seed
        self._length = length_of(source)
        if self._length == 0:
            raise UsageError("the task source is empty; check the suite's split and options")
        self._next = 0
        self._outstanding: set[int] = set()
        self._returned: list[int] = []  # a heap: what came back goes first, the oldest of it first of all
        self._quarantined: set[str] = set()

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Ids of the tasks that are no longer given out."""
        return tuple(sorted(self._quarantined))

    def task_at(self, ticket: int) -> Task:
        """The task of a ticket; a pure function of the seed and the ticket."""
        if self._length is None:
            return self._source.get(ticket)
        epoch, place = divmod(ticket, self._length)
        return self._source.get(permuted(place, self._length, seed=self._seed, epoch=epoch))

    def take(self) -> tuple[int, Task]:
        """The next ticket and its task. It is outstanding until `consume` or `give_back`.

        Raises:
            SuiteStarved: when every task is quarantined.
        """
        # Any two epochs in a row hold a whole one, so this many tries see every task.
        tries = len(self._returned) + 2 * (self._length or _ENDLESS_SKIPS)
        for _ in range(tries):
            ticket = self._pop()
            task = self.task_at(ticket)
            if task.id not in self._quarantined:
                self._outstanding.add(ticket)
                return ticket, task
        shown = ", ".join(self.quarantined[:5])
        raise SuiteStarved(f"every task is quarantined ({len(self._quarantined)}: {shown}, …)")

    def consume(self, ticket: int) -> None:
        """`ticket` is done with: it is never given out again. Raises ValueError unless it is outstanding."""
        self._settle(ticket)

    def give_back(self, ticket: int) -> None:
        """`ticket` keeps its turn: it comes next. Raises ValueError unless it is outstanding."""
        self._settle(ticket)
        heapq.heappush(self._returned, ticket)

    def skip(self, task_id: str) -> None:
        """Quarantines a task: from now on its tickets are passed over. Those outstanding stay so."""
        self._quarantined.add(task_id)

    def state(self) -> dict[str, Any]:
        """What `restore` needs; survives JSON. Tickets given out and not consumed are to be run again."""
        return {
            "seed": self._seed,
            "length": self._length,
            "next": self._next,
            "unconsumed": sorted([*self._outstanding, *self._returned]),
            "quarantined": list(self.quarantined),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved state; nothing is outstanding, what was comes first.

        Raises:
            CheckpointError: when the state is of another order: its tickets would be other tasks.
        """
        for name, mine in (("seed", self._seed), ("length", self._length)):
            if state[name] != mine:
                raise CheckpointError(
                    f"the saved task cursor has {name} {state[name]}, this run has {mine}; "
                    "resume with the seed, split and options the run was started with"
                )
        self._next = state["next"]
        self._returned = sorted(state["unconsumed"])  # a sorted list is a heap
        self._outstanding = set()
        self._quarantined = set(state["quarantined"])

    def statistics(self) -> dict[str, float]:
        """Counts of tickets: given out, outstanding, waiting to be given again; and of quarantined tasks."""
        return {
            "taken": self._next,
            "outstanding": len(self._outstanding),
            "returned": len(self._returned),
            "quarantined": len(self._quarantined),
        }

    def _pop(self) -> int:
        if self._returned:
            return heapq.heappop(self._returned)
        self._next += 1
        return self._next - 1

    def _settle(self, ticket: int) -> None:
        if ticket not in self._outstanding:
            raise ValueError(f"ticket {ticket} is not outstanding; outstanding are {sorted(self._outstanding)[:20]}")
        self._outstanding.remove(ticket)
