"""The laws every algorithm keeps, as one check: `check_algorithm(make_mine())`.

Does not judge what an algorithm optimises, only that groups, masks, packing and micro-batches don't change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from tunix_core.contracts import Algorithm, LossTerms

Arrays = dict[str, Any]
SAMPLES, LONGEST = 6, 8
WILD = 1e4  # a log-probability that overflows any ratio it gets into
TOLERANCE = 1e-5  # relative, float32


@dataclass(frozen=True, slots=True)
class _Sample:
    """One sequence; arrays [T]."""

    logp: np.ndarray
    behaviour_logp: np.ndarray
    entropy: np.ndarray
    mask: np.ndarray
    advantage: float


def check_algorithm(algorithm: Algorithm, *, seed: int = 0) -> None:
    """Checks the laws on random groups and packed batches.

    Permuting a group permutes its advantages. A masked token has no gradient, whatever stands there.
    Loss and gradient don't depend on order, packing, padding or the number of micro-batches. All is
    finite. `idle_at_zero`, where claimed, is true.

    Raises:
        AssertionError: naming the law that is broken, with the numbers.
    """
    rng = np.random.default_rng(seed)
    _check_advantages(algorithm, rng)
    samples = [_sample(rng) for _ in range(SAMPLES)]
    _check_finite(algorithm, samples)
    _check_masked(algorithm, samples)
    _check_packing(algorithm, samples, rng)
    _check_micro_batches(algorithm, samples)
    if algorithm.idle_at_zero:
        _check_idle(algorithm, samples)


def _check_advantages(algorithm: Algorithm, rng: np.random.Generator) -> None:
    for scores in (rng.random(1), np.full(4, 0.3), rng.integers(0, 2, 8).astype(np.float64), rng.normal(size=7)):
        given = scores.copy()
        advantages = algorithm.advantages(scores)
        assert np.array_equal(scores, given), f"{algorithm.id}: advantages() wrote to its scores"
        assert np.shape(advantages) == scores.shape, f"{algorithm.id}: advantages of {scores} have another shape"
        assert np.isfinite(advantages).all(), f"{algorithm.id}: advantages of {scores} are {advantages}"
        order = rng.permutation(len(scores))
        permuted = algorithm.advantages(scores[order])
        _same(algorithm, "permuting a group must permute its advantages", permuted, advantages[order])


def _check_finite(algorithm: Algorithm, samples: Sequence[_Sample]) -> None:
    terms, gradients = _evaluate(algorithm, samples, [range(len(samples))])
    values = [terms.numerator, terms.denominator, *gradients]
    assert all(np.isfinite(v).all() for v in values), f"{algorithm.id}: loss or gradient is not finite"
    assert float(terms.denominator) > 0, f"{algorithm.id}: trained tokens give the denominator {terms.denominator}"
    for name, pair in terms.metrics.items():
        assert all(np.shape(x) == () and np.isfinite(x) for x in pair), f"{algorithm.id}: metric {name} is {pair}"


def _check_masked(algorithm: Algorithm, samples: Sequence[_Sample]) -> None:
    plain, gradients = _evaluate(algorithm, samples, [range(len(samples))])
    for wild in (WILD, -WILD):
        terms, moved = _evaluate(algorithm, samples, [range(len(samples))], wild=wild)
        _same(algorithm, "what stands at a masked token must not count", _sums(terms), _sums(plain))
        _same(algorithm, "what stands at a masked token must not count", _flat(moved), _flat(gradients))
    for sample, gradient in zip(samples, gradients, strict=True):
        assert not gradient[sample.mask == 0].any(), f"{algorithm.id}: a masked token has a gradient: {gradient}"


def _check_packing(algorithm: Algorithm, samples: Sequence[_Sample], rng: np.random.Generator) -> None:
    one_row, gradients = _evaluate(algorithm, samples, [range(len(samples))])
    order = rng.permutation(len(samples))
    for rows in ([order], [order[:2], order[2:]], [order[i::3] for i in range(3)], [[i] for i in order]):
        terms, packed = _evaluate(algorithm, samples, rows)
        _same(algorithm, "the loss must not depend on packing", _sums(terms), _sums(one_row))
        _same(algorithm, "the gradient must not depend on packing", _flat(packed), _flat(gradients))


def _check_micro_batches(algorithm: Algorithm, samples: Sequence[_Sample]) -> None:
    whole, gradients = _evaluate(algorithm, samples, [range(len(samples))])
    parts = [_evaluate(algorithm, part, [range(len(part))]) for part in (samples[:2], samples[2:])]
    total = sum(_sums(terms) for terms, _ in parts)
    _same(algorithm, "micro-batches must add up", total, _sums(whole))
    added = np.concatenate([_flat(part) for _, part in parts])
    _same(algorithm, "the gradients of micro-batches must add up", added, _flat(gradients))


def _check_idle(algorithm: Algorithm, samples: Sequence[_Sample]) -> None:
    still = [_Sample(s.logp, s.behaviour_logp, s.entropy, s.mask, 0.0) for s in samples]
    elsewhere = [_Sample(s.behaviour_logp, s.behaviour_logp, s.entropy, s.mask, 0.0) for s in samples]
    terms, gradients = _evaluate(algorithm, still, [range(len(still))])
    other, _ = _evaluate(algorithm, elsewhere, [range(len(still))])
    assert not _flat(gradients).any(), f"{algorithm.id}: idle_at_zero, but an advantage of 0 has a gradient"
    assert float(terms.numerator) == 0, f"{algorithm.id}: idle_at_zero, but an advantage of 0 has a loss"
    _same(algorithm, "idle_at_zero: the denominator must not depend on logp", other.denominator, terms.denominator)


def _sample(rng: np.random.Generator) -> _Sample:
    length = int(rng.integers(3, LONGEST + 1))
    mask = rng.integers(0, 2, length).astype(np.float32)
    mask[0], mask[-1] = 0, 1
    logp = -rng.exponential(size=length).astype(np.float32)
    behaviour = logp + rng.normal(scale=0.3, size=length).astype(np.float32)
    return _Sample(logp, behaviour, rng.random(length, np.float32), mask, float(rng.normal()))


def _evaluate(
    algorithm: Algorithm, samples: Sequence[_Sample], rows: Sequence[Any], wild: float | None = None
) -> tuple[LossTerms, list[np.ndarray]]:
    """The loss of the samples packed as `rows` (of indices) says, and each sample's gradient [T]."""
    batch, places = _packed(samples, rows)
    logp = batch.pop("logp")
    if wild is not None:
        logp = np.where(batch["mask"] > 0, logp, np.float32(wild))
    terms, gradient = _terms_and_gradient(algorithm, logp, batch)
    return terms, [np.asarray(gradient)[places[i]] for i in range(len(samples))]


@partial(jax.jit, static_argnums=0)
def _terms_and_gradient(algorithm: Algorithm, logp: jax.Array, batch: Arrays) -> tuple[LossTerms, jax.Array]:
    given = {**batch, "old_logp": batch["behaviour_logp"], "sequences": SAMPLES}

    def numerator(logp: jax.Array) -> tuple[jax.Array, LossTerms]:
        terms = algorithm.loss(logp, given)
        return terms.numerator, terms

    (_, terms), gradient = jax.value_and_grad(numerator, has_aux=True)(logp)
    return terms, gradient


def _packed(samples: Sequence[_Sample], rows: Sequence[Any]) -> tuple[Arrays, dict[int, Any]]:
    """A batch, always of one shape, and where each sample lies in it."""
    shape = (SAMPLES, SAMPLES * LONGEST)
    names = ("logp", "behaviour_logp", "entropy", "mask", "advantages")
    batch: Arrays = {name: np.zeros(shape, np.float32) for name in names}
    batch |= {name: np.zeros(shape, np.int32) for name in ("tokens", "positions", "segment_ids")}
    batch |= {"sequence_ids": np.full(shape, SAMPLES, np.int32), "versions": np.full(shape, -1, np.int32)}
    batch["temperature"] = np.ones(shape, np.float32)
    places: dict[int, Any] = {}
    for r, row in enumerate(rows):
        start = 0
        for segment, i in enumerate(row, start=1):
            places[int(i)] = (r, slice(start, start + len(samples[i].logp)))
            _put(batch, places[int(i)], samples[i], int(i), segment)
            start += len(samples[i].logp)
    return batch, places


def _put(batch: Arrays, place: Any, sample: _Sample, sequence: int, segment: int) -> None:
    batch["positions"][place] = np.arange(len(sample.logp))
    batch["segment_ids"][place] = segment
    batch["sequence_ids"][place] = sequence
    batch["advantages"][place] = sample.advantage
    batch["versions"][place] = np.where(sample.mask > 0, 0, -1)
    for name in ("logp", "behaviour_logp", "entropy", "mask"):
        batch[name][place] = getattr(sample, name)


def _sums(terms: LossTerms) -> np.ndarray:
    return np.array([terms.numerator, terms.denominator], np.float64)


def _flat(gradients: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(gradients)


def _same(algorithm: Algorithm, law: str, a: Any, b: Any) -> None:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    off, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    assert off <= TOLERANCE * size + 1e-7, f"{algorithm.id}: {law}; off by {off:.3g} of {size:.3g}"
