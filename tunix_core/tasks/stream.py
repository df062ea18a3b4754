"""The tasks of one suite by ticket: taken, consumed or given back, and saved between.

A ticket is the place of a task in the suite's order. Which task that is follows from (seed, ticket)
alone, so what has to be saved is the next ticket and those that were given out and not consumed. A
curriculum chooses the task when the ticket is first given out; then its choices are saved as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tunix_core.contracts import Curriculum, TaskSource
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
        curriculum: chooses the tasks instead. It is told what they scored by `learn`, in the order of the
            tickets, so that what it chooses doesn't depend on who was consumed first.

    Raises:
        UsageError: when the source is empty.
    """

    def __init__(self, source: TaskSource, *, seed: int, curriculum: Curriculum | None = None) -> None:
        self._source, self._seed, self._curriculum = source, seed, curriculum
        self._chosen: dict[int, int] = {}  # a curriculum's choices, by open ticket
        self._scores: list[tuple[int, int, tuple[float, ...]]] = []  # ticket, index and scores, not yet learnt
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
        """The task of a ticket; a pure function of the seed and the ticket, or what a curriculum chose for it."""
        return self._source.get(self._index(ticket))

    def _index(self, ticket: int) -> int:
        if self._curriculum is not None:
            if ticket not in self._chosen:
                self._chosen[ticket] = self._choice(self._curriculum, ticket)
            return self._chosen[ticket]
        if self._length is None:
            return ticket
        epoch, place = divmod(ticket, self._length)
        return permuted(place, self._length, seed=self._seed, epoch=epoch)

    def _choice(self, curriculum: Curriculum, ticket: int) -> int:
        index = curriculum.next_index(ticket, self._length)
        if index < 0 or (self._length is not None and index >= self._length):
            raise UsageError(
                f"{type(curriculum).__name__}.next_index gave {index}; expected one of range({self._length})"
            )
        return index

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
            self._chosen.pop(ticket, None)
        shown = ", ".join(self.quarantined[:5])
        raise SuiteStarved(f"every task is quarantined ({len(self._quarantined)}: {shown}, …)")

    def consume(self, ticket: int, scores: Sequence[float] = ()) -> None:
        """`ticket` is done with: it is never given out again. Raises ValueError unless it is outstanding.

        `scores`: of its samples, for the curriculum; none when it was set aside.
        """
        self._settle(ticket)
        if self._curriculum is not None:
            self._scores.append((ticket, self._chosen.pop(ticket), tuple(scores)))

    def learn(self) -> None:
        """Tells the curriculum the scores of what was consumed since the last call."""
        for _, index, scores in sorted(self._scores):
            if self._curriculum is not None and scores:
                self._curriculum.observe(index, scores)
        self._scores = []

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
            "chosen": sorted(self._chosen.items()),
            "scores": sorted(self._scores),
            "curriculum": dict(self._curriculum.state()) if self._curriculum else None,
        }

    def restore(self, state: Mapping[str, Any], held: Collection[int] = ()) -> None:
        """Goes on from a saved state; nothing is outstanding but `held`, what else was comes first.

        Args:
            held: tickets of the state's unconsumed whose groups are finished.

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
        self._outstanding = set(held)
        self._returned = sorted(set(state["unconsumed"]) - self._outstanding)  # a sorted list is a heap
        self._quarantined = set(state["quarantined"])
        self._chosen = dict(state.get("chosen", ()))
        self._scores = [(ticket, index, tuple(scores)) for ticket, index, scores in state.get("scores", ())]
        if self._curriculum is not None and state.get("curriculum") is not None:
            self._curriculum.restore(state["curriculum"])

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
