"""Quotas: how many groups of each suite a step consumes, with the remainder carried over."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction


class Mixture:
    """Divides every step's groups among suites by weight.

    Over any number of steps each suite's total stays within one group of its exact share
    (error diffusion), so quotas that do not divide are made up for later.

    Args:
        weights: positive, by suite name; only their proportions matter.
        groups_per_step: at least 1.
    """

    def __init__(self, weights: Mapping[str, float], groups_per_step: int) -> None:
        self._weights = {name: Fraction(weight) for name, weight in weights.items()}
        self.groups_per_step = groups_per_step
        self.dropped: dict[str, int] = {}  # suites left out, and the first step without them
        self._totals = [dict.fromkeys(weights, 0)]  # after 0, 1, 2, … steps
        self._divide()

    def drop(self, suite: str, step: int) -> None:
        """Leaves a suite out from step number `step` on; the others share its places by their weights."""
        self.total(suite, step)
        self.dropped[suite] = step
        del self._totals[step + 1 :]
        self._divide()

    def total(self, suite: str, steps: int) -> int:
        """Groups of `suite` in the first `steps` steps together."""
        while len(self._totals) <= steps:
            self._totals.append(self._next(self._totals[-1]))
        return self._totals[steps][suite]

    def quota(self, step: int) -> dict[str, int]:
        """Groups of each suite in step number `step` (from 0); they add up to groups_per_step."""
        return {name: self.total(name, step + 1) - self.total(name, step) for name in self.shares}

    def error(self, consumed: Mapping[str, int]) -> float:
        """max over suites of |share of consumed groups - share asked|; 0.0 when nothing was consumed."""
        total = sum(consumed.get(name, 0) for name in self._shares)
        if not total:
            return 0.0
        return max(abs(consumed.get(name, 0) / total - share) for name, share in self._shares.items())

    def _divide(self) -> None:
        left = {name: weight for name, weight in self._weights.items() if name not in self.dropped}
        self._shares = {name: weight / sum(left.values()) for name, weight in left.items()}
        self.shares = {name: float(self._shares.get(name, 0)) for name in self._weights}

    def _next(self, totals: Mapping[str, int]) -> dict[str, int]:
        """One more step. Each place goes to the suite due first among those behind their share: the
        earliest deadline, which on one processor of full load misses none (Liu and Layland, 1973)."""
        totals = dict(totals)
        for _ in range(self.groups_per_step if self._shares else 0):
            place = sum(totals[name] for name in self._shares) + 1
            behind = [name for name, share in self._shares.items() if totals[name] < share * place]
            chosen = min(behind, key=lambda name: (totals[name] + 1) / self._shares[name])
            totals[chosen] += 1
        return totals
