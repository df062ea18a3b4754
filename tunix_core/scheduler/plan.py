"""Which groups the current step may take, so that no admitted group grows too old.

A group admitted at version a may be trained at versions a .. a + max_staleness: that is its
deadline. The step takes a group only if those it passes over still find places before their
deadlines; otherwise it waits for them. Admission never opens more groups than the places up to
their deadline, so places always suffice.

Places are counted from the start of the run: what a suite didn't fill in earlier steps is its
debt, and the first it fills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tunix_core.scheduler.ledger import Ledger, Ticket
from tunix_core.scheduler.mixture import Mixture
from tunix_core.types import Group


class StepPlan:
    """The places of one step, and what may take them.

    Args:
        version: the policy version whose gradient the step takes; also the step's number.
        mixture: quotas of this step and the later ones.
        max_staleness: the bound, in versions.
        ledger: the open groups; a live view.
        consumed: groups consumed since the run began, by suite; a live view.
        in_order: a suite's groups are taken in the order of their tickets.

    Attributes:
        closed: is set when the step has become full without another group.
    """

    def __init__(
        self,
        version: int,
        mixture: Mixture,
        max_staleness: int,
        ledger: Ledger,
        consumed: Mapping[str, int],
        *,
        in_order: bool = False,
    ) -> None:
        self.version = version
        self.closed = asyncio.Event()
        self._mixture, self._bound, self._in_order = mixture, max_staleness, in_order
        self._ledger, self._consumed = ledger, consumed
        self._excused: set[str] = set()
        self._refused: set[tuple[str, int | None]] = set()  # suites and versions, while nothing changes
        self._looked_at = (-1, 0)

    def accepts(self, group: Group) -> bool:
        """True when the step has a place for `group` that no older group needs."""
        ticket = (group.suite, group.index)
        now = self._ledger.changes, len(self._mixture.dropped)
        if self._looked_at != now:
            self._looked_at = now
            self._refused.clear()
        alike = (group.suite, self._ledger.kept_at(ticket))
        if alike in self._refused or (self._in_order and not self._ledger.is_first(ticket)):
            return False
        if not self._has_place(ticket):
            self._refused.add(alike)
            return False
        return True

    def _has_place(self, ticket: Ticket) -> bool:
        suite, older = ticket[0], 0
        if self.left(suite) == 0:
            return False
        for born, count in sorted(self._ledger.waited(suite, without=ticket).items()):
            deadline = born + self._bound
            if deadline >= self.version:  # else it can't be trained, whatever is kept for it
                older += count
                if older > self._places(suite, deadline) - 1:
                    return False
        return True

    def barrier(self, waiting: Sequence[Group]) -> str:
        """What a step that takes none of the `waiting` groups waits for, as spans name it.

        "wait.groups": there are none. "wait.mix": they are of suites that have had their share.
        "wait.staleness": an older group, still running, needs the place.
        """
        if not waiting:
            return "wait.groups"
        return "wait.staleness" if any(self.left(group.suite) for group in waiting) else "wait.mix"

    def left(self, suite: str) -> int:
        """Places up to this step that are not yet taken, whether or not the step waits for them."""
        return 0 if suite in self._mixture.dropped else max(0, self._places(suite, self.version))

    def debt(self, suite: str) -> int:
        """Places of earlier steps among those that are left."""
        return 0 if suite in self._mixture.dropped else max(0, self._places(suite, self.version - 1))

    def excuse(self, suite: str) -> bool:
        """Lets the step close without the suite's places; False while one of its groups would grow too old."""
        if any(born + self._bound == self.version for born in self._ledger.waited(suite)):
            return False
        self._excused.add(suite)
        if self.full:
            self.closed.set()
        return True

    @property
    def missing(self) -> dict[str, int]:
        """Places the step waits for, of the suites that have any."""
        left = {suite: self.left(suite) for suite in self._consumed if suite not in self._excused}
        return {suite: count for suite, count in left.items() if count}

    @property
    def full(self) -> bool:
        return not self.missing

    def _places(self, suite: str, deadline: int) -> int:
        """Places of the steps up to the one at `deadline` that are not yet taken."""
        return self._mixture.total(suite, deadline + 1) - self._consumed[suite]
