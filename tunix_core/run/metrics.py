"""One row of numbers per step."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tunix_core.run.pipeline import Taken
from tunix_core.scheduler import Scheduler
from tunix_core.types import Group, Trajectory, staleness


class StepMetrics:
    """Gathers what happens between two steps and gives it as a flat row."""

    def __init__(self, suites: Iterable[str], sampled: float = 0.0, saved: Mapping[str, float] | None = None) -> None:
        self._suites = tuple(suites)
        self._last = time.monotonic()
        self._start = self._last - (saved or {}).get("time_s", 0.0)
        self._sampled_before = self._sampled_at_start = sampled
        self._trained = self._waited = 0.0
        self._told = _Told(self._suites)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as the trainer waiting for groups."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - started

    @contextmanager
    def working(self) -> Iterator[None]:
        """Inside `waiting`: the time inside is none of waiting."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._waited -= time.monotonic() - started

    def state(self) -> dict[str, float]:
        """What a resumed run goes on from."""
        return {"time_s": time.monotonic() - self._start}

    def episode(self, trajectory: Trajectory) -> None:
        """One has ended. It is counted at once: thousands at the end of a step would hold everybody up."""
        self._told.suites[trajectory.id.suite].episode(trajectory)

    async def groups(self, taken: Taken) -> None:
        """Counts a step's groups; others have a turn in between."""
        for group in taken.groups:
            self._told.group(group)
            await asyncio.sleep(0)
        for group in taken.refilled:
            self._told.suites[group.suite].refill(group)
            await asyncio.sleep(0)

    def row(
        self,
        step: int,
        learned: Mapping[str, float],
        engine: Mapping[str, float],
        scheduler: Scheduler,
        observed: Mapping[str, float],
    ) -> dict[str, float]:
        """The step's row, with what its groups and episodes told, and what was observed; starts gathering for the
        next."""
        now = time.monotonic()
        wall = now - self._last
        sampled = engine.get("tokens_sampled", 0.0)
        row: dict[str, float] = {
            "step": step,
            "time_s": now - self._start,
            "step_s": wall,
            "wait_groups_s": self._waited,
            "tokens_per_s": (sampled - self._sampled_before) / wall if wall else 0.0,
            "mix_error": scheduler.mix_error(),
        }
        row |= {name: float(value) for name, value in learned.items()}
        row |= {f"engine/{name}": float(value) for name, value in engine.items()}
        row |= self._told.row(step)
        row |= observed
        self._told = _Told(self._suites)
        self._trained += row.get("trained_tokens", 0.0) + row.get("idle_tokens", 0.0)
        row["goodput"] = self._trained / max(1.0, sampled - self._sampled_at_start)
        for suite in scheduler.consumed:
            for kind, count in scheduler.failures.counts[suite].items():
                row[f"suite/{suite}/failures/{kind}"] = count
            row |= {f"suite/{suite}/{name}": value for name, value in scheduler.suite_statistics(suite).items()}
        row["episodes_limit"] = float(scheduler.concurrency.limit)
        self._last, self._sampled_before, self._waited = now, sampled, 0.0
        return row


@dataclass(slots=True)
class _OfSuite:
    """What a suite's groups and episodes told since the last row.

    Scores are of the groups that the trainer took, those that it replaced included, since to leave them out would
    show the tasks as they were chosen; latency and the share without a score are of the episodes that ended.
    """

    groups: int = 0
    refilled: int = 0
    signals: int = 0
    scores: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    unscored: int = 0
    env_s: float = 0.0
    turns: int = 0
    sampled: int = 0

    def episode(self, trajectory: Trajectory) -> None:
        self.seconds.append(trajectory.timing.get("total", 0.0))
        self.unscored += trajectory.score is None or trajectory.score.value is None
        self.env_s += trajectory.timing.get("env", 0.0)
        self.turns += trajectory.turns
        self.sampled += trajectory.sampled_tokens

    def take(self, group: Group) -> None:
        scores = [t.score.value for t in group.survivors if t.score and t.score.value is not None]
        self.groups += 1
        self.signals += len(set(scores)) > 1
        self.scores += scores

    def refill(self, group: Group) -> None:
        self.take(group)
        self.refilled += 1

    def row(self) -> dict[str, float]:
        found: dict[str, float] = {"groups": self.groups - self.refilled, "groups_refilled": self.refilled}
        ended = len(self.seconds)
        found["episodes"] = ended
        if self.scores:
            found["score"] = sum(self.scores) / len(self.scores)
            found["signal_share"] = self.signals / self.groups
        if ended:
            found["none_share"] = self.unscored / ended
            found |= _latency(sorted(self.seconds))
            found |= {"env_s": self.env_s / ended, "turns": self.turns / ended, "sampled_tokens": self.sampled / ended}
        return found


class _Told:
    """What a step's groups, and the episodes that ended meanwhile, told."""

    def __init__(self, suites: Iterable[str]) -> None:
        self.suites = {name: _OfSuite() for name in suites}
        self._versions: Counter[int] = Counter()  # of the sampled tokens that were trained

    def group(self, group: Group) -> None:
        """One that was trained."""
        self.suites[group.suite].take(group)
        for trajectory in group.survivors:
            for span in trajectory.spans:
                if span.sampled:
                    self._versions.update(span.versions.tolist())

    def row(self, step: int) -> dict[str, float]:
        tokens = self._versions.total()
        row = {f"staleness/{staleness(step, at)}": count / tokens for at, count in sorted(self._versions.items())}
        for suite, told in self.suites.items():
            row |= {f"suite/{suite}/{name}": value for name, value in told.row().items()}
        return row


def _latency(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median and ninth decile of an ascending list."""
    return {
        "latency_s": sum(seconds) / len(seconds),
        "latency_s_p50": seconds[len(seconds) // 2],
        "latency_s_p90": seconds[int(0.9 * len(seconds))],
    }
