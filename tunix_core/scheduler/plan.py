"""Which groups the current step may take, so that no admitted group grows too old.

A group admitted at version a may be trained at versions a .. a + max_staleness: that is its
deadline. The step takes a group only if those it passes over still find places before their
deadlines; otherwise it waits for them. Admission never opens more groups than the quotas up to
their deadline hold, so places always suffice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tunix_core.scheduler.mixture import Mixture
from tunix_core.types import Group

Ticket = tuple[str, int]  # (suite, group index)


class StepPlan:
    """The quota of one step, and what it may take.

    Args:
        version: the policy version whose gradient the step takes; also the step's number.
        mixture: quotas of this step and the later ones.
        max_staleness: the bound, in versions.
        admitted: the version at admission of every open group; a live view.
    """

    def __init__(self, version: int, mixture: Mixture, max_staleness: int, admitted: Mapping[Ticket, int]) -> None:
        self.version = version
        self._mixture, self._bound, self._admitted = mixture, max_staleness, admitted
        self._quota = mixture.quota(version)
        self._taken: Counter[str] = Counter()

    def accepts(self, group: Group) -> bool:
        """True when the step has a place for `group` that no older group needs."""
        ticket = (group.suite, group.index)
        if self.left(group.suite) == 0:
            return False
        others = (born for key, born in self._admitted.items() if key[0] == group.suite and key != ticket)
        deadlines = sorted(born + self._bound for born in others)
        return all(
            count <= self.left(group.suite) - 1 + self._later(group.suite, deadline)
            for count, deadline in enumerate(deadlines, 1)
        )

    def barrier(self, waiting: Sequence[Group]) -> str:
        """What a step that takes none of the `waiting` groups waits for, as spans name it.

        "wait.groups": there are none. "wait.mix": they are of suites that have had their share.
        "wait.staleness": an older group, still running, needs the place.
        """
        if not waiting:
            return "wait.groups"
        return "wait.staleness" if any(self.left(group.suite) for group in waiting) else "wait.mix"

    def take(self, suite: str) -> None:
        """Counts a group as consumed, whether it carried a signal or not."""
        self._taken[suite] += 1

    def left(self, suite: str) -> int:
        """Places of the quota not yet taken."""
        return self._quota[suite] - self._taken[suite]

    @property
    def missing(self) -> dict[str, int]:
        """Places not yet taken, of the suites that have any."""
        return {suite: self.left(suite) for suite in self._quota if self.left(suite)}

    @property
    def full(self) -> bool:
        return not self.missing

    def _later(self, suite: str, deadline: int) -> int:
        """Places of the steps after this one, up to the step at `deadline`."""
        return self._mixture.total(suite, deadline + 1) - self._mixture.total(suite, self.version + 1)
