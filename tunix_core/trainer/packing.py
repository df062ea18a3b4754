"""Samples of any length become micro-batches of one shape.

A branch of a trajectory is a segment: it lies whole in one row, its positions count from 0, and
nothing is cut. The branches of a trajectory share a micro-batch, so that sums over a sample are whole.
The mask is what the spans said, never a length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tunix_core.types import Batch, Row, Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One trajectory as the trainer sees it.

    Attributes:
        branches: its rows; each starts with a forced token, since a first token has nothing before it.
        advantage: of every trained token.
        temperature: at which it was sampled, > 0.
    """

    branches: tuple[Row, ...]
    advantage: float
    temperature: float

    @classmethod
    def of(cls, trajectory: Trajectory, advantage: float, temperature: float) -> Sample:
        """The branches with something to train. Raises ValueError when one starts with a sampled token."""
        branches = tuple(row for row in trajectory.rows() if row.mask.any())
        if any(row.mask[0] for row in branches):
            raise ValueError(f"{trajectory.id}: a branch starts with a sampled token; a prompt must come first")
        return cls(branches, advantage, temperature)

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.branches)

    @property
    def trained_tokens(self) -> int:
        return int(sum(row.mask.sum() for row in self.branches))


Place = tuple[int, int]  # row, first column


class Packer:
    """Collects samples until they would fill two micro-batches, then fills one, the longest first.

    Choosing among twice what fits leaves about 10 % padding where packing in the order of arrival
    leaves 20 %. Deterministic: the same samples in the same order give the same batches.

    Args:
        rows: R. row_tokens: T. Every batch has this shape.
    """

    def __init__(self, rows: int, row_tokens: int) -> None:
        self._rows, self._row_tokens = rows, row_tokens
        self._pending: list[Sample] = []

    def fits(self, sample: Sample) -> bool:
        """Whether an empty micro-batch has room for all branches of the sample."""
        return self._places(sample, [0] * self._rows) is not None

    def add(self, sample: Sample) -> Batch | None:
        """Takes a sample that fits; gives a micro-batch when enough is pending. Raises ValueError when it doesn't."""
        if not self.fits(sample):
            raise ValueError(f"a sample of {sample.tokens} tokens does not fit {self._rows} x {self._row_tokens}")
        self._pending.append(sample)
        enough = sum(s.tokens for s in self._pending) > 2 * self._rows * self._row_tokens
        return self._fill() if enough else None

    def flush(self) -> list[Batch]:
        """All that is pending, padded."""
        batches = []
        while self._pending:
            batches.append(self._fill())
        return batches

    def _fill(self) -> Batch:
        used, placed, left = [0] * self._rows, list[tuple[Sample, list[Place]]](), list[Sample]()
        for sample in sorted(self._pending, key=lambda s: s.tokens, reverse=True):
            places = self._places(sample, used)
            if places is None:
                left.append(sample)
                continue
            for (row, start), branch in zip(places, sample.branches, strict=True):
                used[row] = start + len(branch.tokens)
            placed.append((sample, places))
        self._pending = left
        return _batch(placed, self._rows, self._row_tokens)

    def _places(self, sample: Sample, used: list[int]) -> list[Place] | None:
        """The first row with room for each branch in turn, or None when one finds no row."""
        ends, places = list(used), list[Place]()
        for branch in sample.branches:
            length = len(branch.tokens)
            row = next((r for r, end in enumerate(ends) if end + length <= self._row_tokens), None)
            if row is None:
                return None
            places.append((row, ends[row]))
            ends[row] += length
        return places


def empty_batch(rows: int, row_tokens: int) -> Batch:
    """A micro-batch of padding."""
    shape, most = (rows, row_tokens), rows * row_tokens
    return Batch(
        tokens=np.zeros(shape, np.int32),
        positions=np.zeros(shape, np.int32),
        segment_ids=np.zeros(shape, np.int32),
        sequence_ids=np.full(shape, most, np.int32),
        mask=np.zeros(shape, np.float32),
        behaviour_logp=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
        versions=np.full(shape, -1, np.int32),
        temperature=np.ones(shape, np.float32),
        sequences=most,
    )


def _batch(samples: list[tuple[Sample, list[Place]]], rows: int, row_tokens: int) -> Batch:
    batch = empty_batch(rows, row_tokens)
    segments = [0] * rows
    for sequence, (sample, places) in enumerate(samples):
        for (row, start), branch in zip(places, sample.branches, strict=True):
            segments[row] += 1
            here = row, slice(start, start + len(branch.tokens))
            batch.tokens[here] = branch.tokens
            batch.positions[here] = np.arange(len(branch.tokens))
            batch.segment_ids[here] = segments[row]
            batch.sequence_ids[here] = sequence
            batch.mask[here] = branch.mask
            batch.behaviour_logp[here] = branch.logprobs
            batch.advantages[here] = sample.advantage
            batch.versions[here] = branch.versions
            batch.temperature[here] = sample.temperature
    return batch


def fresh_tokens(batch: Batch, version: int) -> np.ndarray:
    """The trained tokens that `version` sampled after none but its own: bool [R, T].

    What trainer and engine must agree on: a token after an older version's was sampled from a cache
    which that version had filled.
    """
    foreign = (batch.versions >= 0) & (batch.versions != version)
    before = np.cumsum(foreign, axis=1)
    starts = np.maximum.accumulate(np.where(batch.positions == 0, np.arange(before.shape[1]), 0), axis=1)
    at_start = np.take_along_axis(before, starts, axis=1)
    return (batch.mask > 0) & (before == at_start)
