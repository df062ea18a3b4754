"""Samples of any length become micro-batches of one shape.

A branch of a trajectory lies whole in one row, and nothing is cut. Branches that begin alike may have
their beginning once, where they are added as one: then they are a tree. The branches of a trajectory share
a micro-batch, so that sums over a sample are whole; so do the samples that are added as one.
The mask is what the spans said, never a length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunix_core.trainer.trees import Tree, grow
from tunix_core.types import Batch, Row, Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One trajectory as the trainer sees it.

    Attributes:
        branches: its rows; each starts with a forced token, since a first token has nothing before it.
        advantage: of every trained token; an array [T] has one for each, in order.
        temperature: at which it was sampled, > 0.
    """

    branches: tuple[Row, ...]
    advantage: float | np.ndarray
    temperature: float

    @classmethod
    def of(cls, trajectory: Trajectory, advantage: float | np.ndarray, temperature: float) -> Sample:
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


Place = tuple[int, np.ndarray]  # a branch's row, and the columns of its tokens
Unit = tuple[Sample, ...]  # what shares a micro-batch


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A micro-batch, and where in it each sample's branches lie."""

    batch: Batch
    places: Mapping[Sample, Sequence[Place]]

    def gather(self, values: np.ndarray) -> dict[Sample, np.ndarray]:
        """[R, T] -> the values at each sample's trained tokens, in order."""
        return {
            sample: np.concatenate([values[here] for here in _trained(sample, places)])
            for sample, places in self.places.items()
        }

    def scatter(self, values: Mapping[Sample, np.ndarray]) -> np.ndarray:
        """What `gather` took apart, as float32 [R, T]; 0 elsewhere."""
        found = np.zeros(self.batch.mask.shape, np.float32)
        for sample, places in self.places.items():
            _spread(found, values[sample], sample, places)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Laid:
    """A unit as trees; `owners` says which tree each of its branches is in, and the how manieth there."""

    unit: Unit
    trees: Sequence[Tree]
    owners: Sequence[tuple[int, int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.trees))


class Packer:
    """Collects samples until they would fill two micro-batches, then fills one, the longest first.

    Choosing among twice what fits leaves about 10 % padding where packing in the order of arrival
    leaves 20 %. Deterministic: the same samples in the same order give the same batches.

    Args:
        rows: R. row_tokens: T. Every batch has this shape.
        share_prefix: samples added as one have what they begin with once.
    """

    def __init__(self, rows: int, row_tokens: int, share_prefix: bool = False) -> None:
        self._rows, self._row_tokens, self._share_prefix = rows, row_tokens, share_prefix
        self._pending: list[_Laid] = []

    def fits(self, *samples: Sample) -> bool:
        """Whether an empty micro-batch has room for all branches of the samples."""
        return self._places(self._lay(samples), [0] * self._rows) is not None

    def units(self, samples: Sequence[Sample], together: bool) -> list[Unit]:
        """The samples of one group by what is to be added as one.

        Args:
            together: they must share a micro-batch; else only those that fit one row and save tokens there.
        """
        if not samples:
            return []
        if together or len(samples) == 1:
            return [tuple(samples)]
        if self._share_prefix and self._saves(samples):
            return [tuple(samples)]
        cut = len(samples) // 2 if self._share_prefix else 1
        return self.units(samples[:cut], together) + self.units(samples[cut:], together)

    def add(self, *samples: Sample) -> Batch | None:
        """Takes samples that fit, as one; gives a micro-batch when enough is pending.

        Raises:
            ValueError: they don't fit.
        """
        laid = self._lay(samples)
        if self._places(laid, [0] * self._rows) is None:
            raise ValueError(f"a sample of {laid.tokens} tokens does not fit {self._rows} x {self._row_tokens}")
        self._pending.append(laid)
        enough = sum(each.tokens for each in self._pending) > 2 * self._rows * self._row_tokens
        return self._fill().batch if enough else None

    def flush(self) -> list[Batch]:
        """All that is pending, padded."""
        return [packed.batch for packed in self._rest()]

    def pack(self, units: Sequence[Unit]) -> list[Packed]:
        """All of the units that fit, and what was pending, at once; what doesn't fit is left out."""
        self._pending += [self._lay(unit) for unit in units if self.fits(*unit)]
        return self._rest()

    def _rest(self) -> list[Packed]:
        found = []
        while self._pending:
            found.append(self._fill())
        return found

    def _fill(self) -> Packed:
        used, placed, left = [0] * self._rows, list[tuple[_Laid, list[tuple[int, int]]]](), list[_Laid]()
        for laid in sorted(self._pending, key=lambda laid: laid.tokens, reverse=True):
            places = self._places(laid, used)
            if places is None:
                left.append(laid)
                continue
            for (row, start), tree in zip(places, laid.trees, strict=True):
                used[row] = start + len(tree)
            placed.append((laid, places))
        self._pending = left
        return _packed(placed, self._rows, self._row_tokens)

    def _places(self, laid: _Laid, used: list[int]) -> list[tuple[int, int]] | None:
        """For each tree the emptiest row, and where that is free, so that rows cost alike; None when one has no room.

        The longest comes first, since it has the least choice.
        """
        ends, places = list(used), dict[int, tuple[int, int]]()
        for tree in sorted(range(len(laid.trees)), key=lambda tree: -len(laid.trees[tree])):
            row = min(range(self._rows), key=ends.__getitem__)
            places[tree] = row, ends[row]
            ends[row] += len(laid.trees[tree])
            if ends[row] > self._row_tokens:
                return None
        return [places[tree] for tree in range(len(laid.trees))]

    def _saves(self, samples: Sequence[Sample]) -> bool:
        laid = self._lay(samples)
        return len(laid.trees) == 1 and laid.tokens < sum(sample.tokens for sample in samples)

    def _lay(self, samples: Sequence[Sample]) -> _Laid:
        branches = [branch for sample in samples for branch in sample.branches]
        trees = self._grown(branches) if self._share_prefix else [grow([branch]) for branch in branches]
        owners = [(tree, at) for tree, grown in enumerate(trees) for at in range(len(grown.columns))]
        return _Laid(tuple(samples), trees, owners)

    def _grown(self, branches: Sequence[Row]) -> list[Tree]:
        """As few trees as halving finds that fit a row, over the branches in order."""
        tree = grow(branches)
        if len(tree) <= self._row_tokens or len(branches) == 1:
            return [tree]
        half = len(branches) // 2
        return self._grown(branches[:half]) + self._grown(branches[half:])


def empty_batch(rows: int, row_tokens: int) -> Batch:
    """A micro-batch of padding."""
    shape, most = (rows, row_tokens), rows * row_tokens
    return Batch(
        tokens=np.zeros(shape, np.int32),
        positions=np.zeros(shape, np.int32),
        segment_ids=np.zeros(shape, np.int32),
        before=np.zeros(shape, np.int32),
        seen_until=np.zeros(shape, np.int32),
        sequence_ids=np.full(shape, most, np.int32),
        group_ids=np.full(shape, most, np.int32),
        mask=np.zeros(shape, np.float32),
        behaviour_logp=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
        versions=np.full(shape, -1, np.int32),
        temperature=np.ones(shape, np.float32),
        sequences=most,
    )


def _packed(placed: Sequence[tuple[_Laid, Sequence[tuple[int, int]]]], rows: int, row_tokens: int) -> Packed:
    batch, found = empty_batch(rows, row_tokens), dict[Sample, Sequence[Place]]()
    segments = [0] * rows
    for group, (laid, places) in enumerate(placed):
        for tree, (row, start) in zip(laid.trees, places, strict=True):
            segments[row] += 1
            _put_tree(batch, tree, row, start, segments[row])
        following = iter(laid.owners)
        for sample in laid.unit:
            found[sample] = [
                (places[tree][0], places[tree][1] + laid.trees[tree].columns[at])
                for tree, at in (next(following) for _ in sample.branches)
            ]
            for branch, (row, columns) in zip(sample.branches, found[sample], strict=True):
                _put(batch, branch, row, columns)
                batch.sequence_ids[row, columns] = len(found) - 1
                batch.group_ids[row, columns] = group
                batch.temperature[row, columns] = sample.temperature
            _spread(batch.advantages, sample.advantage, sample, found[sample])
    for sequence, (sample, places) in enumerate(found.items()):
        for here in _trained(sample, places):  # what another only repeats is whose it is trained for
            batch.sequence_ids[here] = sequence
    return Packed(batch, found)


def _put_tree(batch: Batch, tree: Tree, row: int, start: int, segment: int) -> None:
    here = row, slice(start, start + len(tree))
    batch.segment_ids[here] = segment
    batch.positions[here] = tree.positions
    batch.before[here] = start + tree.before
    batch.seen_until[here] = start + tree.seen_until


def _put(batch: Batch, branch: Row, row: int, columns: np.ndarray) -> None:
    """Of tokens that others share, what was sampled here."""
    sampled, trained = columns[branch.versions >= 0], columns[branch.mask > 0]
    batch.tokens[row, columns] = branch.tokens
    batch.versions[row, sampled] = branch.versions[branch.versions >= 0]
    batch.mask[row, trained] = 1.0
    batch.behaviour_logp[row, trained] = branch.logprobs[branch.mask > 0]


def _trained(sample: Sample, places: Sequence[Place]) -> list[tuple[int, np.ndarray]]:
    """(row, columns) of the trained tokens of each branch."""
    return [(row, columns[branch.mask > 0]) for branch, (row, columns) in zip(sample.branches, places, strict=True)]


def _spread(target: np.ndarray, values: float | np.ndarray, sample: Sample, places: Sequence[Place]) -> None:
    """Writes one value, or one for each trained token in order, into [R, T]."""
    each, done = np.broadcast_to(values, sample.trained_tokens), 0
    for row, columns in _trained(sample, places):
        target[row, columns] = each[done : done + len(columns)]
        done += len(columns)


def fresh_tokens(batch: Batch, version: int) -> np.ndarray:
    """The trained tokens that `version` sampled after none but its own: bool [R, T].

    What trainer and engine must agree on: a token after an older version's was sampled from a cache
    which that version had filled.
    """
    rows, columns = np.nonzero((batch.versions >= 0) & (batch.versions != version))
    change = np.zeros((batch.mask.shape[0], batch.mask.shape[1] + 1), np.int32)
    change[rows, columns] += 1
    np.subtract.at(change, (rows, batch.seen_until[rows, columns]), 1)
    return (batch.mask > 0) & (np.cumsum(change, axis=1)[:, :-1] == 0)
