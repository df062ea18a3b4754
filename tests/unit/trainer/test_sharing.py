"""What samples begin with is computed once, and nothing else changes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.algorithms import centred, normalised, policy_gradient, ratio_objective
from tunix_core.config import TrainerConfig
from tunix_core.trainer import Packer, Sample, Trainer
from tunix_core.trainer.trees import grow
from tunix_core.types import Group, Row

sys.path.insert(0, str(Path(__file__).parent))
from stepping import flat, relative, step

CONFIG = TrainerConfig(rows=2, row_tokens=48, learning_rate=1.0, optimizer="sgd", max_grad_norm=1e9)
PLAIN = policy_gradient("x/plain", centred, ratio_objective)
ENTROPIC = policy_gradient("x/entropic", normalised, ratio_objective, aggregate="sequence", entropy_weight=0.1)


def row(tokens: Sequence[int], mask: Sequence[int]) -> Row:
    born = np.asarray(mask, np.float32)
    versions = np.where(born > 0, 3, -1).astype(np.int32)
    return Row(np.asarray(tokens, np.int32), born, -born, versions, np.zeros(len(mask), np.int32))


branches = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=6), min_size=1, max_size=6
)


@settings(max_examples=200)
@given(branches)
def test_a_tree_holds_its_branches_and_no_token_is_trained_for_two(drawn: list[list[tuple[int, int]]]) -> None:
    rows = [row([9, *(t for t, _ in b)], [0, *(m for _, m in b)]) for b in drawn]
    tree = grow(rows)
    trained = np.concatenate([c[r.mask > 0] for c, r in zip(tree.columns, rows, strict=True)])
    assert len(np.unique(trained)) == len(trained)
    assert sorted({int(c) for columns in tree.columns for c in columns}) == list(range(len(tree)))
    order = np.arange(len(tree))
    for columns, each in zip(tree.columns, rows, strict=True):
        assert len(columns) == len(each.tokens)
        assert tree.positions[columns].tolist() == list(range(len(columns)))
        assert tree.before[columns[1:]].tolist() == columns[:-1].tolist()
        last = columns[-1]
        sees = order[(order <= last) & (last < tree.seen_until)]
        assert sees.tolist() == columns.tolist()
    for columns, each in zip(tree.columns, rows, strict=True):
        for others, other in zip(tree.columns, rows, strict=True):
            both = np.flatnonzero(columns[: len(others)] == others[: len(columns)])
            assert (each.tokens[both] == other.tokens[both]).all()


def test_what_is_not_trained_twice_stands_once() -> None:
    prompt = [5, 6, 7]
    rows = [row([*prompt, 1, 2], [0, 0, 0, 1, 1]), row([*prompt, 1, 3], [0, 0, 0, 1, 1])]
    assert len(grow(rows)) == 7  # both sampled 1: it is trained for each
    fork = row([*prompt, 1, 4, 2], [0, 0, 0, 0, 0, 1])
    assert len(grow([rows[0], fork])) == 7  # it repeats what the first had sampled


def conversations(make: Any, seed: int, *, size: int = 5, longest: int = 9) -> Group:
    """One prompt; then answers and observations of uneven lengths; the third forks after its first turn."""
    rng = np.random.default_rng([seed, 1])
    prompt = rng.integers(0, 11, int(rng.integers(1, longest))).tolist()
    members = []
    for sample in range(size):
        parts = [rng.integers(0, 11, int(n)).tolist() for n in rng.integers(1, 5, 3)]
        spans = [make.span(prompt, False), *(make.span(p, i != 1, logp=-2.0) for i, p in enumerate(parts))]
        if sample == 2:
            spans += [make.span([*prompt, *parts[0]], False, branch=1), make.span([1, 2, 3], True, branch=1)]
        members.append(make.trajectory(spans, float(rng.random()), group=seed, sample=sample))
    return make.group(members, index=seed)


def changed(model: Any, algorithm: Any, groups: Sequence[Group], **config: Any) -> tuple[np.ndarray, Any]:
    learner = Trainer(model, model.init(0), {"s": algorithm}, replace(CONFIG, **config), steps=10)
    before = flat(learner.weights().params)
    metrics = step(learner, groups)
    return flat(learner.weights().params) - before, metrics


@pytest.mark.parametrize("algorithm", [PLAIN, ENTROPIC], ids=lambda a: a.id)
def test_the_gradient_is_that_of_each_sample_alone(model: Any, make: Any, algorithm: Any) -> None:
    """Several groups a row, several turns, uneven lengths, a fork."""
    groups = [conversations(make, seed) for seed in range(6)]
    shared, told = changed(model, algorithm, groups)
    alone, plain = changed(model, algorithm, groups, share_prefix=False)
    assert relative(shared, alone) < 1e-5
    assert told["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    for name in ("trained_tokens", "trained_sequences", "refused_sequences", "entropy", "agreement_mean"):
        assert told[name] == pytest.approx(plain[name], rel=1e-5)
    assert told["shared_tokens"] > 0 and plain["shared_tokens"] == 0


def test_a_group_too_long_for_a_row_is_parted(make: Any) -> None:
    prompt = list(range(10))
    samples = [
        Sample.of(make.trajectory([make.span(prompt, False), make.span([i] * 9, True)], 1.0), 1.0, 1.0)
        for i in range(8)
    ]
    packer = Packer(2, 32, share_prefix=True)
    units = packer.units(samples, together=False)
    assert [len(unit) for unit in units] == [2, 2, 2, 2]
    assert packer.units(samples, together=True) == [tuple(samples)]
    assert len(Packer(2, 32).units(samples, together=False)) == 8


def test_what_shares_nothing_is_not_tied_together(make: Any) -> None:
    samples = [
        Sample.of(make.trajectory([make.span([i], False), make.span([1, 2], True)], 1.0), 1.0, 1.0) for i in range(4)
    ]
    assert len(Packer(2, 32, share_prefix=True).units(samples, together=False)) == 4
