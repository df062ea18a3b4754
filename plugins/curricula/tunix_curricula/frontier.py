"""Draws tasks where there is most to learn: at difficulties that are solved sometimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SURVEYED = 512  # tasks whose difficulties the buckets are made from
TRIES = 64  # tasks looked at for one choice


class Frontier:
    """A task sampler by difficulty and success rate.

    The difficulties of the source are divided into buckets. A bucket's signal is the variance of its
    groups' scores, times 4: for scores of 0 and 1 that is 4 p (1 - p) of the success rate p, which is 1
    where half the samples succeed and 0 where all or none do (the p (1 - p) of ProCuRL, Tzannetos et al.,
    2023). A task is drawn with a chance in proportion to its bucket's signal. A bucket not seen yet
    counts as full of signal. Tasks without a difficulty share a bucket of their own.

    Args:
        source: the suite's tasks: `get(index)` with a `difficulty`, and a length or a TypeError.
        seed: decides the draws, with the cursor.
        buckets: at most, at least 1.
        memory: groups over which a bucket's signal is averaged, exponentially; at least 1.
        floor: the least chance of a bucket relative to a full signal's, in (0, 1].
        low, high: the scores of a failure and a success; others lie between them or are taken to.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        source: Any,
        *,
        seed: int,
        buckets: int = 8,
        memory: int = 32,
        floor: float = 0.1,
        low: float = 0.0,
        high: float = 1.0,
    ) -> None:
        if buckets < 1 or memory < 1 or not 0 < floor <= 1 or low >= high:
            raise ValueError(
                f"buckets = {buckets} and memory = {memory} must be at least 1, floor = {floor} in (0, 1], "
                f"and low = {low} below high = {high}"
            )
        self._source, self._seed, self._memory, self._floor = source, seed, memory, floor
        self._low, self._high = low, high
        self._edges = _edges(_survey(source), buckets)
        count = len(self._edges) + 2  # the last one is for tasks without a difficulty
        self._signal, self._groups = np.ones(count), np.ones(count)  # as if each had had one full of signal

    def next_index(self, cursor: int, length: int | None) -> int:
        """The task for `cursor`: a function of the seed, the cursor and what was observed.

        Of an endless source each cursor has tasks of its own to choose from, so that none comes twice.
        """
        rng = np.random.default_rng([self._seed % 2**64, cursor])
        chances = self.chances()
        best, best_chance = 0, -1.0
        for number in range(TRIES):
            index = cursor * TRIES + number if length is None else int(rng.integers(length))
            chance = chances[self._bucket(index)]
            if rng.random() * chances.max() < chance:
                return index
            if chance > best_chance:
                best, best_chance = index, chance
        return best

    def observe(self, index: int, scores: Sequence[float]) -> None:
        """The scores of one group of task `index`; [G], G >= 1. One of a single sample tells nothing."""
        if len(scores) < 2:
            return
        bucket, keep = self._bucket(index), 1 - 1 / self._memory
        succeeded = np.clip((np.asarray(scores, float) - self._low) / (self._high - self._low), 0, 1)
        self._groups[bucket] = self._groups[bucket] * keep + 1
        self._signal[bucket] = self._signal[bucket] * keep + 4 * succeeded.var()

    def chances(self) -> np.ndarray:
        """float64 [buckets + 1]: each bucket's chance relative to the others', for equally many tasks in each."""
        return np.maximum(self._floor, self._signal / self._groups)

    def state(self) -> Mapping[str, Any]:
        return {"edges": list(self._edges), "signal": self._signal.tolist(), "groups": self._groups.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError when the state is of other buckets."""
        if list(state["edges"]) != list(self._edges):
            raise ValueError(
                f"the saved curriculum divides difficulties at {state['edges']}, this one at {list(self._edges)}; "
                "resume with the tasks and the options the run was started with"
            )
        self._signal, self._groups = np.asarray(state["signal"], float), np.asarray(state["groups"], float)

    def _bucket(self, index: int) -> int:
        difficulty = self._source.get(index).difficulty
        if difficulty is None:
            return len(self._edges) + 1
        return int(np.searchsorted(self._edges, difficulty, side="right"))


def _survey(source: Any) -> np.ndarray:
    """Difficulties of tasks all over the source, or of the first ones when it is endless."""
    try:
        length = len(source)
    except TypeError:
        length = SURVEYED
    places = np.unique(np.linspace(0, length - 1, min(length, SURVEYED)).astype(int)) if length else []
    found = (source.get(int(place)).difficulty for place in places)
    return np.asarray([difficulty for difficulty in found if difficulty is not None], float)


def _edges(difficulties: np.ndarray, buckets: int) -> tuple[float, ...]:
    """What parts the buckets, ascending: between neighbouring values when there are few, else quantiles."""
    values = np.unique(difficulties)
    if len(values) <= buckets:
        return tuple(((values[1:] + values[:-1]) / 2).tolist())
    inner = np.quantile(difficulties, np.arange(1, buckets) / buckets)
    return tuple(np.unique(inner).tolist())
