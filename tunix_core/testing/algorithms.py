"""The laws every algorithm keeps, as one check: `check_algorithm(make_mine())`.

Does not judge what an algorithm optimises, only that groups, masks, packing and micro-batches don't change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from tunix_core.contracts import Algorithm, LossTerms, Outcome

Arrays = dict[str, Any]
Range = tuple[float, float]
SAMPLES, LONGEST = 6, 8
WILD = 1e4  # a log-probability that overflows any ratio it gets into
TOLERANCE = 1e-5  # relative, float32
BY_TOKEN = ("logp", "behaviour_logp", "proximal_logp", "reference_logp", "entropy", "mask")


@dataclass(frozen=True, slots=True)
class _Sample:
    """One sequence; arrays [T]."""

    logp: np.ndarray
    behaviour_logp: np.ndarray
    proximal_logp: np.ndarray
    reference_logp: np.ndarray
    entropy: np.ndarray
    mask: np.ndarray
    advantage: float


def check_algorithm(
    algorithm: Algorithm,
    *,
    seed: int = 0,
    score_range: Range = (-3.0, 3.0),
    shift_invariant: bool = False,
    scale_invariant: bool = False,
    policy_gradient: bool = False,
) -> None:
    """Checks the laws on random groups and packed batches.

    Permuting a group permutes its advantages; so does `over_step` with the step's samples. A masked token
    has no gradient, whatever stands there. Loss and gradient don't depend on order, packing, padding or the
    number of micro-batches. All is finite. `idle_at_zero`, where claimed, is true.

    Args:
        score_range: the scores it is for.
        shift_invariant: also, that a shift of all scores of a group changes no advantage.
        scale_invariant: also, that scaling them changes none by more than its epsilon does.
        policy_gradient: also, that where the policy is what sampled, no ratio is held and the gradient of
            the loss by logp is −A / (number of samples), for samples of one token.

    Raises:
        AssertionError: naming the law that is broken, with the numbers.
    """
    rng = np.random.default_rng(seed)
    for scores in _groups(rng, score_range):
        _check_advantages(algorithm, scores, rng)
        if shift_invariant:
            _check_unchanged(algorithm, "a shift of a group's scores", scores, scores + 0.25 * np.ptp(score_range))
        if scale_invariant:
            _check_unchanged(algorithm, "scaling a group's scores", scores, scores * 5.0, 1e-4)
    if algorithm.over_step:
        _check_over_step(algorithm, [_outcome(rng, score_range) for _ in range(SAMPLES)], rng)
    samples = [_sample(rng) for _ in range(SAMPLES)]
    _check_finite(algorithm, samples)
    _check_masked(algorithm, samples)
    _check_packing(algorithm, samples, rng)
    _check_micro_batches(algorithm, samples)
    if algorithm.idle_at_zero:
        _check_idle(algorithm, samples)
    if policy_gradient:
        _check_policy_gradient(algorithm, [_one_token(rng) for _ in range(SAMPLES)])


def _groups(rng: np.random.Generator, score_range: Range) -> list[np.ndarray]:
    low, high = score_range
    shapes = (rng.random(1), np.full(4, 0.3), rng.integers(0, 2, 8).astype(np.float64), rng.random(7))
    return [low + (high - low) * shape for shape in shapes]


def _check_advantages(algorithm: Algorithm, scores: np.ndarray, rng: np.random.Generator) -> None:
    given = scores.copy()
    advantages = algorithm.advantages(scores)
    assert np.array_equal(scores, given), f"{algorithm.id}: advantages() wrote to its scores"
    assert np.shape(advantages) == scores.shape, f"{algorithm.id}: advantages of {scores} have another shape"
    assert np.isfinite(advantages).all(), f"{algorithm.id}: advantages of {scores} are {advantages}"
    order = rng.permutation(len(scores))
    permuted = algorithm.advantages(scores[order])
    _same(algorithm, "permuting a group must permute its advantages", permuted, advantages[order])


def _check_unchanged(
    algorithm: Algorithm, what: str, scores: np.ndarray, moved: np.ndarray, tolerance: float = TOLERANCE
) -> None:
    before, after = algorithm.advantages(scores), algorithm.advantages(moved)
    _same(algorithm, f"{what} must change nothing", after, before, tolerance)


def _check_over_step(algorithm: Algorithm, outcomes: Sequence[Outcome], rng: np.random.Generator) -> None:
    assert algorithm.over_step
    found = algorithm.over_step(outcomes)
    advantages, tokens = [o.advantages for o in found], [o.tokens for o in outcomes]
    shapes = [np.shape(a) for a in advantages]
    assert shapes == [(n,) for n in tokens], f"{algorithm.id}: over_step gives {shapes} for samples of {tokens} tokens"
    assert np.isfinite(_flat(advantages)).all(), f"{algorithm.id}: over_step gives {advantages}"
    order = rng.permutation(len(outcomes))
    permuted = [o.advantages for o in algorithm.over_step([outcomes[i] for i in order])]
    law = "permuting a step must permute its advantages"
    _same(algorithm, law, _flat(permuted), _flat([advantages[i] for i in order]))


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
    still = [replace(s, advantage=0.0) for s in samples]
    elsewhere = [replace(s, logp=s.behaviour_logp) for s in still]
    terms, gradients = _evaluate(algorithm, still, [range(len(still))])
    other, _ = _evaluate(algorithm, elsewhere, [range(len(still))])
    assert not _flat(gradients).any(), f"{algorithm.id}: idle_at_zero, but an advantage of 0 has a gradient"
    assert float(terms.numerator) == 0, f"{algorithm.id}: idle_at_zero, but an advantage of 0 has a loss"
    _same(algorithm, "idle_at_zero: the denominator must not depend on logp", other.denominator, terms.denominator)


def _check_policy_gradient(algorithm: Algorithm, samples: Sequence[_Sample]) -> None:
    """At the behaviour's own parameters, where every ratio is 1."""
    terms, gradients = _evaluate(algorithm, samples, [range(len(samples))])
    for side in ("clip_low", "clip_high"):
        held = terms.metrics.get(side, (0.0, 1.0))[0]
        assert float(held) == 0, f"{algorithm.id}: {held} tokens are held at ratio 1 ({side})"
    wanted = [-s.advantage * s.mask for s in samples]
    scale = len(samples) / float(terms.denominator)
    _same(algorithm, "at ratio 1 it must be the policy gradient", _flat(gradients) * scale, _flat(wanted))


def _sample(rng: np.random.Generator) -> _Sample:
    length = int(rng.integers(3, LONGEST + 1))
    mask = rng.integers(0, 2, length).astype(np.float32)
    mask[0], mask[-1] = 0, 1
    logp = -rng.exponential(size=length).astype(np.float32)
    behaviour, proximal, reference = logp + rng.normal(scale=0.3, size=(3, length)).astype(np.float32)
    return _Sample(logp, behaviour, proximal, reference, rng.random(length, np.float32), mask, float(rng.normal()))


def _one_token(rng: np.random.Generator) -> _Sample:
    """A sample that the policy itself took."""
    logp = -rng.exponential(size=2).astype(np.float32)
    return _Sample(logp, logp, logp, logp, np.zeros(2, np.float32), np.array([0, 1], np.float32), float(rng.normal()))


def _outcome(rng: np.random.Generator, score_range: Range) -> Outcome:
    length, score = int(rng.integers(1, LONGEST)), float(rng.uniform(*score_range))
    rewards = np.zeros(length)
    rewards[-1] = score
    logp = -rng.exponential(size=(2, length)).astype(np.float32)
    return Outcome(
        suite=f"s{rng.integers(2)}",
        group=int(rng.integers(3)),
        score=score,
        parts={"env": score},
        turns=np.zeros(length, np.int32),
        rewards=rewards,
        behaviour_logp=logp[0],
        advantages=np.full(length, rng.normal()),
        reference_logp=logp[1],
        values=rng.normal(size=length).astype(np.float32),
    )


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
    old_logp = batch["proximal_logp" if algorithm.needs_proximal else "behaviour_logp"]
    given = {**batch, "old_logp": old_logp, "sequences": SAMPLES}
    given |= {adaptive.name: adaptive.start for adaptive in algorithm.adaptive}

    def numerator(logp: jax.Array) -> tuple[jax.Array, LossTerms]:
        terms = algorithm.loss(logp, given)
        return terms.numerator, terms

    (_, terms), gradient = jax.value_and_grad(numerator, has_aux=True)(logp)
    return terms, gradient


def _packed(samples: Sequence[_Sample], rows: Sequence[Any]) -> tuple[Arrays, dict[int, Any]]:
    """A batch, always of one shape, and where each sample lies in it."""
    shape = (SAMPLES, SAMPLES * LONGEST)
    batch: Arrays = {name: np.zeros(shape, np.float32) for name in (*BY_TOKEN, "advantages")}
    batch |= {name: np.zeros(shape, np.int32) for name in ("tokens", "positions", "segment_ids", "staleness")}
    batch |= {name: np.full(shape, SAMPLES, np.int32) for name in ("sequence_ids", "group_ids")}
    batch["versions"] = np.full(shape, -1, np.int32)
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
    batch["group_ids"][place] = sequence // 2
    batch["staleness"][place] = sequence
    batch["advantages"][place] = sample.advantage
    batch["versions"][place] = np.where(sample.mask > 0, 0, -1)
    for name in BY_TOKEN:
        batch[name][place] = getattr(sample, name)


def _sums(terms: LossTerms) -> np.ndarray:
    return np.array([terms.numerator, terms.denominator], np.float64)


def _flat(gradients: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(gradients)


def _same(algorithm: Algorithm, law: str, a: Any, b: Any, tolerance: float = TOLERANCE) -> None:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    off, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    assert off <= tolerance * size + 1e-7, f"{algorithm.id}: {law}; off by {off:.3g} of {size:.3g}"
