"""How far ahead each suite is started, and how many episodes run at once: from what is measured.

Takes times of episodes, groups and steps, and the engine's statistics; gives bounds for admission.
Does not know tasks, versions or tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

MARGIN_STEPS = 1  # beyond what Little's law asks for, so that a step finds its groups waiting
QUEUE_LOW, QUEUE_HIGH = 1.0, 4.0  # requests waiting in the engine, per slot: fewer starve it, more only age
SHRINK, GROW = 0.9, 0.5  # of the limit; of the slots
CACHE_LOSS = 0.7  # of the best hit share seen: below it, conversations push each other out of the cache
LOOK_EVERY_S = 0.25
Statistics = Callable[[], Mapping[str, float]]


class Estimate:
    """A running mean and mean deviation (Jacobson's estimator of round-trip times, 1988). None at first."""

    GAIN = 0.2

    def __init__(self) -> None:
        self.mean: float | None = None
        self.deviation = 0.0

    def add(self, value: float) -> None:
        if self.mean is None:
            self.mean = value
            return
        error = value - self.mean
        self.mean += self.GAIN * error
        self.deviation += self.GAIN * (abs(error) - self.deviation)


class Concurrency:
    """Bounds on what runs.

    Args:
        members: by suite, how many episodes a group starts.
        max_episodes: the upper bound on concurrent episodes.
        slots: of the engine; None: nothing is adapted to it.
        engine: its statistics; "queued" requests, and "cached_tokens" and "prefill_tokens" since the start.
    """

    def __init__(
        self, members: Mapping[str, int], max_episodes: int, *, slots: int | None = None, engine: Statistics = dict
    ) -> None:
        self._members, self._most, self._slots, self._engine = members, max_episodes, slots, engine
        self._least = min(max_episodes, max(2 * (slots or 0), sum(members.values())))
        self.limit = max_episodes
        self._episodes = {name: Estimate() for name in members}
        self._groups = {name: Estimate() for name in members}
        self._step = Estimate()
        self._queued, self._hits, self._best_hit = Estimate(), Estimate(), 0.0
        self._tokens = (0.0, 0.0)
        self._looked = -math.inf

    def episode(self, suite: str, seconds: float) -> None:
        """An episode of `suite` ended."""
        self._episodes[suite].add(seconds)

    def group(self, suite: str, seconds: float) -> None:
        """A group of `suite` ended."""
        self._groups[suite].add(seconds)

    def step(self, seconds: float) -> None:
        """A step took this long, from weights to weights."""
        self._step.add(seconds)

    def lead(self, suite: str, bound: int, per_place: float = 1.0) -> int:
        """Steps beyond the current one for which the suite's groups are started now: 0 .. `bound`.

        Little's law: groups in flight = groups a step needs × (a group's time / a step's time). What is
        started earlier than that would only wait and age; what takes longer than `bound` steps can't be
        used by a later step than that. `per_place`: groups that are looked at for one that takes a place.
        """
        group, step = self._groups[suite], self._step
        if group.mean is None or not step.mean:
            return bound
        return min(bound, math.ceil(per_place * ((group.mean + 2 * group.deviation) / step.mean + MARGIN_STEPS)))

    def outlasts(self, suite: str, bound: int, deadline_s: float) -> bool:
        """Whether a group of the suite, started now, would be too old at its end: it takes longer than a step
        waits for it, and steps go on so fast that more than `bound` of them are over by then."""
        group, step = self._groups[suite].mean, self._step.mean
        return bool(group and step and group > deadline_s and group > bound * step)

    def wanted(self, suite: str, groups_per_step: float) -> float:
        """Episodes in flight with which the suite delivers `groups_per_step`, by Little's law; NaN until measured."""
        episode, step = self._episodes[suite].mean, self._step.mean
        return self._members[suite] * groups_per_step * episode / step if episode and step else math.nan

    def latency_s(self, suite: str) -> float:
        """A running mean of the suite's episode time, in seconds; NaN until measured."""
        mean = self._episodes[suite].mean
        return math.nan if mean is None else mean

    def look(self, now: float, running: int) -> None:
        """Adapts the limit to the engine: fewer episodes while requests pile up or push each other's prefixes
        out of the cache, more while slots wait for work. At most every LOOK_EVERY_S seconds."""
        if self._slots is None or now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        statistics = self._engine()
        if "queued" not in statistics:
            return
        self._queued.add(statistics["queued"])
        queued = (self._queued.mean or 0.0) / self._slots
        if queued > QUEUE_HIGH or (self._is_thrashing(statistics) and queued > QUEUE_LOW):
            self.limit = max(self._least, math.floor(self.limit * SHRINK))
        elif queued < QUEUE_LOW and running >= SHRINK * self.limit:
            self.limit = min(self._most, self.limit + math.ceil(GROW * self._slots))

    def _is_thrashing(self, statistics: Mapping[str, float]) -> bool:
        tokens = statistics.get("cached_tokens", 0.0), statistics.get("prefill_tokens", 0.0)
        cached, computed = (new - old for new, old in zip(tokens, self._tokens, strict=True))
        self._tokens = tokens
        if cached + computed > 0:
            self._hits.add(cached / (cached + computed))
        hit = self._hits.mean or 0.0
        self._best_hit = max(self._best_hit, hit)
        return hit < CACHE_LOSS * self._best_hit
