"""Samples into rows: nothing cut, nothing lost, masks as they were born."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.trainer.packing import Packer, Sample, fresh_tokens
from tunix_core.types import Batch, Row

ROWS, ROW_TOKENS = 3, 16


def row(mask: list[int], first_token: int = 0) -> Row:
    length = len(mask)
    born = np.asarray(mask, np.float32)
    return Row(
        tokens=np.arange(first_token, first_token + length, dtype=np.int32),
        mask=born,
        logprobs=-born,
        versions=np.where(born > 0, 5, -1).astype(np.int32),
        turns=np.zeros(length, np.int32),
    )


def pack(samples: list[Sample], rows: int = ROWS, row_tokens: int = ROW_TOKENS) -> list[Batch]:
    packer = Packer(rows, row_tokens)
    batches = [packer.add(sample) for sample in samples] + packer.flush()
    return [batch for batch in batches if batch is not None]


def segments(batch: Batch) -> list[tuple[int, np.ndarray]]:
    """(sequence, tokens) of each segment."""
    found = []
    for r in range(len(batch.tokens)):
        for s in range(1, batch.segment_ids[r].max() + 1):
            here = batch.segment_ids[r] == s
            assert len({*batch.sequence_ids[r][here]}) == 1
            assert batch.positions[r][here].tolist() == list(range(here.sum()))
            found.append((int(batch.sequence_ids[r][here][0]), batch.tokens[r][here]))
    return found


lengths = st.lists(st.integers(2, ROW_TOKENS), min_size=1, max_size=12)


@given(lengths)
def test_every_sample_lies_whole_in_one_row(sizes: list[int]) -> None:
    samples = [Sample((row([0] + [1] * (n - 1), first_token=100 * i),), float(i), 1.0) for i, n in enumerate(sizes)]
    batches = pack(samples)
    found = sorted(tokens.tolist() for batch in batches for _, tokens in segments(batch))
    assert found == sorted(s.branches[0].tokens.tolist() for s in samples)
    assert sum(batch.mask.sum() for batch in batches) == sum(n - 1 for n in sizes)
    for batch in batches:
        assert batch.tokens.shape == (ROWS, ROW_TOKENS)
        padding = batch.segment_ids == 0
        assert (batch.sequence_ids[padding] == batch.sequences).all()
        assert not batch.mask[padding].any()
        assert (batch.versions[padding] == -1).all()


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(2, 8), min_size=1, max_size=3), min_size=1, max_size=8))
def test_the_branches_of_a_sample_share_a_batch_and_a_sequence(sizes: list[list[int]]) -> None:
    samples = [
        Sample(tuple(row([0] + [1] * (n - 1), first_token=1000 * i) for n in branches), 1.0, 1.0)
        for i, branches in enumerate(sizes)
    ]
    seen = []
    for batch in pack(samples):
        by_sequence: dict[int, list[np.ndarray]] = {}
        for sequence, tokens in segments(batch):
            by_sequence.setdefault(sequence, []).append(tokens)
        seen += [sorted(len(t) for t in branches) for branches in by_sequence.values()]
        assert all(len({int(t[0]) for t in branches}) == 1 for branches in by_sequence.values())
    assert sorted(seen) == sorted(sorted(b) for b in sizes)


def test_the_mask_is_not_a_length() -> None:
    """[A A E E A A] after a prompt: both answers stay trained, the observation between them is not."""
    mask = [0, 1, 1, 0, 0, 1, 1]
    (batch,) = pack([Sample((row(mask),), 2.0, 0.5)])
    assert batch.mask[0].tolist() == [*map(float, mask), *[0.0] * 9]
    assert batch.behaviour_logp[0, :7].tolist() == [-float(m) for m in mask]
    assert batch.versions[0, :7].tolist() == [5 if m else -1 for m in mask]
    assert batch.advantages[0, :7].tolist() == [2.0 * m for m in mask]
    assert batch.temperature[0].tolist() == [0.5] * 7 + [1.0] * 9


def test_samples_are_chosen_so_that_rows_are_full() -> None:
    samples = [Sample((row([0, 1] * (n // 2)),), 1.0, 1.0) for n in (6, 6, 6, 10, 10, 10)]
    (batch,) = pack(samples)
    assert (batch.segment_ids > 0).all()


def test_a_micro_batch_is_given_out_before_the_end() -> None:
    packer, given_out = Packer(2, 8), 0
    for _ in range(20):
        given_out += packer.add(Sample((row([0, 1, 1, 1]),), 1.0, 1.0)) is not None
    assert given_out == 3
    assert len(packer.flush()) == 2


def test_what_does_not_fit_is_known_before_it_is_added() -> None:
    packer = Packer(2, 8)
    assert packer.fits(Sample((row([0] * 7 + [1]),), 1.0, 1.0))
    assert not packer.fits(Sample((row([0] * 8 + [1]),), 1.0, 1.0))
    assert not packer.fits(Sample((row([0] * 4 + [1]),) * 3, 1.0, 1.0))
    with pytest.raises(ValueError, match="does not fit 2 x 8"):
        packer.add(Sample((row([0] * 8 + [1]),), 1.0, 1.0))


def test_only_branches_with_something_to_train_are_taken(make: Any) -> None:
    spans = [make.span([1, 2], False), make.span([3], True), make.span([1, 2, 3], False, branch=1)]
    sample = Sample.of(make.trajectory(spans, 1.0), 1.0, 1.0)
    assert [b.tokens.tolist() for b in sample.branches] == [[1, 2, 3]]


def test_a_branch_without_a_prompt_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="a prompt must come first"):
        Sample.of(make.trajectory([make.span([3], True)], 1.0), 1.0, 1.0)


def test_fresh_tokens_have_no_older_one_before_them_in_their_segment() -> None:
    first, second = row([0, 1, 1, 0, 1]), row([0, 1, 1])
    first.versions[:] = [-1, 7, 6, -1, 7]
    second.versions[:] = [-1, 7, 7]
    (batch,) = pack([Sample((first,), 1.0, 1.0), Sample((second,), 1.0, 1.0)], rows=1)
    assert fresh_tokens(batch, 7)[0, :8].tolist() == [False, True, False, False, False, False, True, True]
    assert not fresh_tokens(batch, 8).any()


def test_samples_that_are_added_as_one_share_a_batch_and_a_group() -> None:
    pairs = [[Sample((row([0, 1] * n, first_token=100 * i + 10 * n),), 1.0, 1.0) for n in (1, 3)] for i in range(5)]
    packer = Packer(2, 8)
    batches = [batch for pair in pairs if (batch := packer.add(*pair))] + packer.flush()
    assert len(batches) == 3
    for batch in batches:
        filled = batch.group_ids < batch.sequences
        assert (filled == (batch.segment_ids > 0)).all()
        for group in np.unique(batch.group_ids[filled]):
            mine = batch.group_ids == group
            assert len(np.unique(batch.sequence_ids[mine])) == 2
            assert len(np.unique(batch.tokens[mine] // 100)) == 1
    assert not packer.fits(*pairs[0], *pairs[1], *pairs[2])


def test_alone_each_sample_is_its_own_group() -> None:
    (batch,) = pack([Sample((row([0, 1]), row([0, 1, 1])), 1.0, 1.0), Sample((row([0, 1]),), 1.0, 1.0)])
    np.testing.assert_array_equal(batch.group_ids, batch.sequence_ids)


@given(lengths)
def test_what_is_gathered_by_sample_is_scattered_back(sizes: list[int]) -> None:
    rng = np.random.default_rng(len(sizes))
    units = [(Sample((row([0, *rng.integers(0, 2, n - 2), 1]),), 0.0, 1.0),) for n in sizes]
    for packed in Packer(ROWS, ROW_TOKENS).pack(units):
        values = rng.normal(size=(ROWS, ROW_TOKENS)).astype(np.float32)
        by_sample = packed.gather(values)
        assert {len(x) for x in by_sample.values()} == {s.trained_tokens for s in packed.places}
        np.testing.assert_array_equal(packed.scatter(by_sample), np.where(packed.batch.mask > 0, values, 0))


def test_each_trained_token_may_have_an_advantage_of_its_own() -> None:
    (batch,) = pack([Sample((row([0, 1, 0, 1]), row([0, 1])), np.array([1.0, 2.0, 3.0]), 1.0)], rows=1)
    assert batch.advantages[0, :6].tolist() == [0, 1, 0, 2, 0, 3]
