"""Counts failures by suite, kind and task; says when a task, or the run, is beyond use."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tunix_core.errors import TooManyFailures
from tunix_core.types import Failure, SampleId, Trajectory


class Failed(NamedTuple):
    """What is kept of an episode that failed: its number among its suite's, from 1, and why."""

    number: int
    id: SampleId
    failure: Failure


class FailureLog:
    """Keeps the last `window` outcomes per suite and every task's failed groups.

    Args:
        max_share: more than this share of a full window failed ends the run.
        window: episodes over which the share is taken.
        quarantine_after: failed groups after which a task is set aside.
    """

    def __init__(self, max_share: float, window: int, quarantine_after: int) -> None:
        self._max_share, self._window, self._after = max_share, window, quarantine_after
        self._seen: Counter[str] = Counter()  # episodes, by suite
        self._failed: defaultdict[str, deque[Failed]] = defaultdict(deque)  # those of the last `window`
        self._groups: Counter[tuple[str, str]] = Counter()
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.quarantined: dict[str, list[str]] = defaultdict(list)

    def episode(self, trajectory: Trajectory) -> None:
        """Counts one finished episode; one that a reward gave no score is of kind "no_score".

        Raises:
            TooManyFailures: naming suite, kind and a sample. In the first window as soon as no success could help.
        """
        suite, failure = trajectory.id.suite, trajectory.failure or _without_score(trajectory)
        if failure:
            self.counts[suite][failure.kind] += 1
        for flag in trajectory.score.flags if trajectory.score else ():
            self.counts[suite][flag] += 1
        self._seen[suite] += 1
        failed = self._failed[suite]
        if failure:
            failed.append(Failed(self._seen[suite], trajectory.id, failure))
        while failed and failed[0].number <= self._seen[suite] - self._window:
            failed.popleft()
        if len(failed) > self._max_share * self._window:
            of = min(self._seen[suite], self._window)
            raise TooManyFailures(_explain(suite, failed, of, self._max_share))

    def example(self, suite: str) -> str:
        """The commonest of a suite's recent failures, in words; "" when there is none."""
        failed = self._failed[suite]
        return _example(failed) if failed else ""

    def group(self, suite: str, task: str) -> bool:
        """Counts a group that failed as a whole; True when its task is now quarantined."""
        self._groups[suite, task] += 1
        if self._groups[suite, task] < self._after:
            return False
        self.set_aside(suite, task)
        return True

    def set_aside(self, suite: str, task: str) -> None:
        """Quarantines a task at once (its gold is bad)."""
        if task not in self.quarantined[suite]:
            self.quarantined[suite].append(task)

    def state(self) -> dict[str, Any]:
        """Counts, and what is set aside; survives JSON. The window of recent episodes is not in it."""
        return {
            "counts": {suite: dict(kinds) for suite, kinds in self.counts.items()},
            "groups": [[*key, count] for key, count in self._groups.items()],
            "quarantined": {suite: list(tasks) for suite, tasks in self.quarantined.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` gave."""
        self.counts.update({suite: Counter(kinds) for suite, kinds in state.get("counts", {}).items()})
        self._groups.update({(suite, task): count for suite, task, count in state.get("groups", ())})
        self.quarantined.update({suite: list(tasks) for suite, tasks in state.get("quarantined", {}).items()})


def _without_score(trajectory: Trajectory) -> Failure | None:
    """A reward may give None; where most do, nothing can be learned, as where most episodes fail."""
    has_one = trajectory.score is not None and trajectory.score.value is not None
    return None if has_one else Failure("no_score", "reward", "a reward gave None")


def _explain(suite: str, failed: Sequence[Failed], window: int, allowed: float) -> str:
    return (
        f"suite {suite!r}: {len(failed)} of the last {window} episodes failed (allowed share: {allowed:g}), "
        f"{_example(failed)}. Fix the environment or reward, or raise scheduler.max_failure_share."
    )


def _example(failed: Sequence[Failed]) -> str:
    kinds = Counter(each.failure.kind for each in failed)
    kind, _ = kinds.most_common(1)[0]
    sample = next(each for each in failed if each.failure.kind == kind)
    return f"most often {kind} at {sample.failure.boundary}; for example {sample.id}: {sample.failure.message!r}"
