"""Draws: from the right distribution, reported under the right one, decided by seed and position alone."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.engine.sampling import Drawn, Settings, draw, uniform

V = 37


@jax.jit
def jitted(logits: jax.Array, positions: jax.Array, settings: Settings) -> Drawn:
    return draw(logits, uniform(settings.seed, positions[None])[0], settings)


class Case(NamedTuple):
    logits: np.ndarray
    settings: Settings
    positions: np.ndarray


def case(slots: int, *, seed: int = 0, temperature: float = 1.0, k: int = 0, p: float = 1.0, m: float = 0.0) -> Case:
    rng = np.random.default_rng(seed)
    full = lambda value, kind: np.full(slots, value, kind)  # noqa: E731
    seeds = rng.integers(0, 2**32, (slots, 2), dtype=np.uint32)
    how = Settings(seeds, full(temperature, np.float32), full(k, np.int32), full(p, np.float32), full(m, np.float32))
    return Case(rng.normal(0, 2, (slots, V)).astype(np.float32), how, rng.integers(0, 500, slots).astype(np.int32))


def drawn(c: Case) -> Drawn:
    return Drawn(*map(np.asarray, jitted(c.logits, c.positions, c.settings)))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def truncated(probabilities: np.ndarray, k: int, p: float, m: float) -> np.ndarray:
    """The reference, by sorting: top-k, then top-p of what is left, then min-p; renormalised. One row."""
    order = np.argsort(-probabilities, kind="stable")
    kept = np.zeros(len(probabilities), bool)
    kept[order[: k or None]] = True
    left = np.where(kept, probabilities, 0) / probabilities[kept].sum()
    if p < 1:
        before = np.cumsum(left[order]) - left[order]
        kept[order[before >= p]] = False
    kept &= probabilities >= m * probabilities.max()
    return np.where(kept, probabilities, 0) / probabilities[kept].sum()


def test_a_draw_depends_on_seed_and_position_not_on_the_slot_to_the_bit() -> None:
    c = case(32, p=0.9, temperature=0.8)
    order = np.random.default_rng(1).permutation(32)
    moved = Case(c.logits[order], jax.tree.map(lambda x: x[order], c.settings), c.positions[order])
    for there, here in zip(drawn(moved), drawn(c), strict=True):
        np.testing.assert_array_equal(there, here[order])


@pytest.mark.parametrize("half", [0, 1])
def test_both_halves_of_the_seed_and_the_position_matter(half: int) -> None:
    seeds = np.full((3, 2), 5, np.uint32)
    seeds[1, half] += 1
    variates = np.asarray(uniform(seeds, np.array([[7, 7, 8], [9, 9, 7]], np.int32)))
    assert len({pair.tobytes() for pair in variates.reshape(-1, 2)}) == 5
    np.testing.assert_array_equal(variates[0, 0], variates[1, 2])  # the same seed and position, in another slot


def test_variates_are_uniform_and_independent() -> None:
    seeds = np.random.default_rng(2).integers(0, 2**32, (65536, 2), dtype=np.uint32)
    variates = np.asarray(uniform(seeds, np.arange(65536, dtype=np.int32)[None]))[0]
    assert variates.min() >= 0 and variates.max() < 1
    cells, *_ = np.histogram2d(*variates.T, bins=16, range=[[0, 1], [0, 1]])
    assert ((cells - 256) ** 2 / 256).sum() < 255 + 4 * np.sqrt(2 * 255)


def test_a_token_without_weight_is_never_drawn_wherever_the_variate_falls() -> None:
    """Among weights of very different size, with none at both ends and in between."""
    slots = 4096
    logits = np.full((slots, V), -np.inf, np.float32)
    logits[:, [3, 4, 17, 30]] = [0.0, -14.0, 2.0, -3.0]
    c = Case(logits, case(slots).settings, np.arange(slots, dtype=np.int32))
    assert set(drawn(c).token.tolist()) <= {3, 4, 17, 30}


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("truncation", [{}, {"k": 9}, {"p": 0.8}, {"m": 0.05}, {"k": 20, "p": 0.9, "m": 0.02}])
def test_tokens_follow_the_distribution_by_chi_square(temperature: float, truncation: dict[str, float]) -> None:
    slots = 8192
    c = case(slots, temperature=temperature, **truncation)
    one = Case(np.broadcast_to(c.logits[0], (slots, V)).copy(), c.settings, c.positions)
    expected = slots * truncated(
        softmax(one.logits[0] / temperature), truncation.get("k", 0), truncation.get("p", 1), truncation.get("m", 0)
    )
    counts = np.bincount(drawn(one).token, minlength=V)
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    pooled = np.append(expected[common], max(expected[~common].sum(), 1e-9))
    seen = np.append(counts[common], counts[~common].sum())
    freedom = len(pooled) - 1
    assert ((seen - pooled)[pooled > 1] ** 2 / pooled[pooled > 1]).sum() < freedom + 4 * np.sqrt(2 * freedom)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    temperature=st.floats(0.3, 2.0),
    k=st.integers(0, V + 3),
    p=st.floats(0.05, 1.0),
    m=st.floats(0.0, 0.5),
)
def test_log_probabilities_are_of_the_distribution_sampled_from(
    seed: int, temperature: float, k: int, p: float, m: float
) -> None:
    c = case(32, seed=seed, temperature=temperature, k=k, p=p, m=m)
    got = drawn(c)
    whole = softmax(c.logits / np.float32(temperature))
    for slot, token in enumerate(got.token):
        kept = truncated(whole[slot], k, p, m)
        assert kept[token] > 0
        np.testing.assert_allclose(got.logprob[slot], np.log(kept[token]), atol=2e-5)
        np.testing.assert_allclose(got.full_logprob[slot], np.log(whole[slot, token]), atol=2e-5)


def test_greedy_takes_the_best_and_reports_a_point_mass() -> None:
    c = case(32, temperature=0.0, p=0.5)
    got = drawn(c)
    best = c.logits.argmax(-1)
    np.testing.assert_array_equal(got.token, best)
    np.testing.assert_array_equal(got.logprob, 0)
    np.testing.assert_allclose(got.full_logprob, np.log(softmax(c.logits)[np.arange(32), best]), atol=1e-5)


def test_a_slot_that_does_not_truncate_is_the_same_beside_one_that_does_to_the_bit() -> None:
    c = case(32)
    beside = c.settings._replace(top_p=np.array([1] * 31 + [0.5], np.float32))
    for alone, shared in zip(drawn(c), drawn(c._replace(settings=beside)), strict=True):
        np.testing.assert_array_equal(alone[:31], shared[:31])


def test_without_truncation_both_log_probabilities_are_one_to_the_bit() -> None:
    got = drawn(case(32, temperature=0.9))
    np.testing.assert_array_equal(got.logprob, got.full_logprob)


def test_there_is_no_sort() -> None:
    c = case(4)
    assert "stablehlo.sort" not in jitted.lower(c.logits, c.positions, c.settings).as_text()
