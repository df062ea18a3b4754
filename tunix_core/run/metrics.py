"""One row of numbers per step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tunix_core.run.pipeline import Taken
from tunix_core.scheduler import Scheduler
from tunix_core.types import Trajectory


class StepMetrics:
    """Gathers what happens between two steps and gives it as a flat row."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._sampled_before = 0.0
        self._waited = 0.0
        self._episodes: defaultdict[str, list[Trajectory]] = defaultdict(list)

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

    def restore(self, state: Mapping[str, float]) -> None:
        """Goes on from a saved state."""
        self._start = time.monotonic() - state.get("time_s", 0.0)

    def episode(self, trajectory: Trajectory) -> None:
        self._episodes[trajectory.id.suite].append(trajectory)

    def row(
        self,
        step: int,
        taken: Taken,
        learned: Mapping[str, float],
        engine: Mapping[str, float],
        scheduler: Scheduler,
    ) -> dict[str, float]:
        """The step's row; starts gathering for the next."""
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
        for suite in scheduler.consumed:
            row |= {f"suite/{suite}/{name}": value for name, value in self._suite(suite, taken).items()}
            for kind, count in scheduler.failures.counts[suite].items():
                row[f"suite/{suite}/failures/{kind}"] = count
            row |= {f"suite/{suite}/{name}": value for name, value in scheduler.suite_statistics(suite).items()}
        row["episodes_limit"] = float(scheduler.concurrency.limit)
        self._last, self._sampled_before, self._waited = now, sampled, 0.0
        self._episodes.clear()
        return row

    def _suite(self, suite: str, taken: Taken) -> dict[str, float]:
        """Scores of the groups that the trainer took, those that it replaced included, since to leave them out
        would show the tasks as they were chosen; latency and the share without a score of the episodes that ended."""
        mine = [group for group in taken.groups if group.suite == suite]
        seen = [*mine, *(group for group in taken.refilled if group.suite == suite)]
        scores = [t.score.value for g in seen for t in g.survivors if t.score and t.score.value is not None]
        ended = self._episodes[suite]
        found: dict[str, float] = {"groups": len(mine), "groups_refilled": len(seen) - len(mine)}
        found["episodes"] = len(ended)
        if scores:
            found["score"] = sum(scores) / len(scores)
            found["signal_share"] = sum(g.has_signal for g in seen) / len(seen)
        if ended:
            found["none_share"] = sum(t.score is None or t.score.value is None for t in ended) / len(ended)
            found["latency_s"] = sum(t.timing.get("total", 0.0) for t in ended) / len(ended)
            found["turns"] = sum(t.turns for t in ended) / len(ended)
            found["sampled_tokens"] = sum(t.sampled_tokens for t in ended) / len(ended)
        return found
