"""One row of numbers per step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

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
        self._episodes: dict[str, list[Trajectory]] = {name: [] for name in self._suites}

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
        self._episodes[trajectory.id.suite].append(trajectory)

    def ended(self) -> Mapping[str, Sequence[Trajectory]]:
        """The episodes since the last call, by suite."""
        ended, self._episodes = self._episodes, {name: [] for name in self._suites}
        return ended

    def row(
        self,
        step: int,
        learned: Mapping[str, float],
        engine: Mapping[str, float],
        scheduler: Scheduler,
        told: Mapping[str, float],
    ) -> dict[str, float]:
        """The step's row, with what its groups and episodes told; starts gathering for the next."""
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
        row |= told
        self._trained += row.get("trained_tokens", 0.0) + row.get("idle_tokens", 0.0)
        row["goodput"] = self._trained / max(1.0, sampled - self._sampled_at_start)
        for suite in scheduler.consumed:
            for kind, count in scheduler.failures.counts[suite].items():
                row[f"suite/{suite}/failures/{kind}"] = count
            row |= {f"suite/{suite}/{name}": value for name, value in scheduler.suite_statistics(suite).items()}
        row["episodes_limit"] = float(scheduler.concurrency.limit)
        self._last, self._sampled_before, self._waited = now, sampled, 0.0
        return row


def told_by(step: int, taken: Taken, ended: Mapping[str, Sequence[Trajectory]]) -> dict[str, float]:
    """What a step's groups and the episodes that ended meanwhile say; slow where there are thousands of them."""
    row = staleness_histogram(taken.groups, step)
    for suite, episodes in ended.items():
        row |= {f"suite/{suite}/{name}": value for name, value in _of_suite(suite, taken, episodes).items()}
    return row


def _of_suite(suite: str, taken: Taken, ended: Sequence[Trajectory]) -> dict[str, float]:
    """Scores of the groups that the trainer took, those that it replaced included, since to leave them out
    would show the tasks as they were chosen; latency and the share without a score of the episodes that ended."""
    mine = [group for group in taken.groups if group.suite == suite]
    seen = [*mine, *(group for group in taken.refilled if group.suite == suite)]
    scores = [t.score.value for g in seen for t in g.survivors if t.score and t.score.value is not None]
    found: dict[str, float] = {"groups": len(mine), "groups_refilled": len(seen) - len(mine)}
    found["episodes"] = len(ended)
    if scores:
        found["score"] = sum(scores) / len(scores)
        found["signal_share"] = sum(g.has_signal for g in seen) / len(seen)
    if ended:
        found["none_share"] = sum(t.score is None or t.score.value is None for t in ended) / len(ended)
        found |= _latency(sorted(t.timing.get("total", 0.0) for t in ended))
        found["env_s"] = sum(t.timing.get("env", 0.0) for t in ended) / len(ended)
        found["turns"] = sum(t.turns for t in ended) / len(ended)
        found["sampled_tokens"] = sum(t.sampled_tokens for t in ended) / len(ended)
    return found


def staleness_histogram(groups: Sequence[Group], trained_at: int) -> dict[str, float]:
    """The share of sampled tokens at each staleness, "staleness/0", "staleness/1", …, of the groups' survivors."""
    versions = [s.versions for g in groups for t in g.survivors for s in t.spans if s.sampled]
    if not versions:
        return {}
    of_version = zip(*np.unique(np.concatenate(versions), return_counts=True), strict=True)
    tokens = sum(map(len, versions))
    return {f"staleness/{staleness(trained_at, int(version))}": int(count) / tokens for version, count in of_version}


def _latency(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median and ninth decile of an ascending list."""
    return {
        "latency_s": sum(seconds) / len(seconds),
        "latency_s_p50": seconds[len(seconds) // 2],
        "latency_s_p90": seconds[int(0.9 * len(seconds))],
    }
