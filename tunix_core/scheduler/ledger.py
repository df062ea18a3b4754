"""Every group that was let in and is not yet consumed or given back, with the version it was let in at."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

Ticket = tuple[str, int]  # (suite, group index)


class Ledger:
    """Open groups, counted so that a look costs no more than there are versions within the bound."""

    def __init__(self) -> None:
        self._open: dict[Ticket, int] = {}
        self._waited: defaultdict[str, Counter[int]] = defaultdict(Counter)  # by suite and version
        self._counts: Counter[str] = Counter()
        self._passed: set[Ticket] = set()
        self._owed: defaultdict[str, set[int]] = defaultdict(set)

    def __contains__(self, ticket: object) -> bool:
        return ticket in self._open

    def __len__(self) -> int:
        return len(self._open)

    def born(self, ticket: Ticket) -> int:
        """The version at its admission. Raises KeyError unless it is open."""
        return self._open[ticket]

    def open(self, ticket: Ticket, version: int) -> None:
        """`ticket` is let in. Tickets come in order, so one that is owed and lower was passed over for good."""
        suite, index = ticket
        self._open[ticket] = version
        self._waited[suite][version] += 1
        self._counts[suite] += 1
        self._owed[suite] = {other for other in self._owed[suite] if other > index}

    def close(self, ticket: Ticket, *, owed: bool = False) -> None:
        """`ticket` is no longer open; `owed`: it went back, and comes again. Raises KeyError unless it is open."""
        self.pass_over(ticket)
        self._passed.discard(ticket)
        del self._open[ticket]
        self._counts[ticket[0]] -= 1
        if owed:
            self._owed[ticket[0]].add(ticket[1])

    def pass_over(self, ticket: Ticket) -> None:
        """`ticket` stays open, and no step waits for it any more."""
        if ticket not in self._passed:
            self._passed.add(ticket)
            counts, version = self._waited[ticket[0]], self._open[ticket]
            counts[version] -= 1
            if not counts[version]:
                del counts[version]

    def count(self, suite: str) -> int:
        """Open groups of a suite."""
        return self._counts[suite]

    def waited(self, suite: str, without: Ticket | None = None) -> Mapping[int, int]:
        """How many open groups of a suite a step has to keep places for, by version; one may be left out."""
        found = dict(self._waited[suite])
        if without in self._open and without not in self._passed:
            found[self._open[without]] -= 1
        return found

    def is_first(self, ticket: Ticket) -> bool:
        """Whether no lower ticket of its suite is open, or owed."""
        suite, index = ticket
        opened = (other for name, other in self._open if name == suite)
        return index <= min([index, *opened, *self._owed[suite]])
