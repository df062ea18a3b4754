"""GRPO and SFT against figures computed independently in float64 from the formulas in the docstrings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tunix_algorithms.grpo import make_grpo
from tunix_algorithms.sft import make_sft

from tunix_core.contracts import Algorithm
from tunix_core.errors import UsageError
from tunix_core.testing.algorithms import check_algorithm

LOGP = [[-1.0, -0.5, -2.0], [-0.7, -1.2, -0.3]]
OLD = [[-1.2, -0.5, -1.5], [-0.9, -1.0, -0.4]]
BEHAVIOUR = [[-1.1, -0.7, -1.5], [-0.9, -2.0, -0.4]]
MASK = [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
ADVANTAGES = [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]

# (options, old log-probabilities, loss, gradient by logp)
FIGURES: dict[str, tuple[dict[str, Any], Any, float, Any]] = {
    "token mean": (
        {},
        OLD,
        -0.15327942969489633,
        [[0.0, -0.2, -0.121306131943], [0.244280551632, 0.163746150616, 0.0]],
    ),
    "sequence mean of token means": (
        {"aggregate": "sequence"},
        OLD,
        0.04227826785743238,
        [[0.0, -0.166666666667, -0.101088443285], [0.30535068954, 0.204682688269, 0.0]],
    ),
    "clip higher": (
        {"eps_high": 0.28},
        OLD,
        -0.15755998132693022,
        [[-0.244280551632, -0.2, -0.121306131943], [0.244280551632, 0.163746150616, 0.0]],
    ),
    "the ratio to behaviour holds the whole correction": (
        {},
        BEHAVIOUR,
        0.10704842177287137,
        [[-0.221034183615, 0.0, -0.121306131943], [0.244280551632, 0.445108185698, 0.0]],
    ),
}


def batch(old: Any = OLD, mask: Any = MASK) -> dict[str, Any]:
    """Two sequences, one a row."""
    old = jnp.asarray(old)
    return {
        "mask": jnp.asarray(mask),
        "behaviour_logp": old,
        "old_logp": old,
        "advantages": jnp.asarray(ADVANTAGES),
        "sequence_ids": jnp.asarray([[0, 0, 0], [1, 1, 1]]),
        "sequences": 2,
    }


def value_and_gradient(algorithm: Algorithm, given: dict[str, Any]) -> tuple[float, np.ndarray]:
    def loss(logp: jax.Array) -> jax.Array:
        terms = algorithm.loss(logp, given)
        return terms.numerator / terms.denominator

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(LOGP))
    return float(value), np.asarray(gradient)


@pytest.mark.parametrize("name", FIGURES)
def test_value_and_gradient(name: str) -> None:
    options, old, value, gradient = FIGURES[name]
    found, slope = value_and_gradient(make_grpo(**options), batch(old))
    assert found == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(slope, gradient, atol=1e-6)


@pytest.mark.parametrize("name", FIGURES)
def test_the_gradient_is_the_slope_of_the_value(name: str) -> None:
    """A second derivation: finite differences in float64."""
    options, old, _, gradient = FIGURES[name]
    eps_low, eps_high = options.get("eps_low", 0.2), options.get("eps_high", 0.2)
    mask, advantages = np.array(MASK), np.array(ADVANTAGES)

    def loss(logp: np.ndarray) -> float:
        ratio = np.exp(logp - np.array(old))
        each = np.maximum(-advantages * ratio, -advantages * np.clip(ratio, 1 - eps_low, 1 + eps_high)) * mask
        if options.get("aggregate") == "sequence":
            return float((each.sum(1) / mask.sum(1)).mean())
        return float(each.sum() / mask.sum())

    for place in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[place] = 1e-6
        slope = (loss(np.array(LOGP) + step) - loss(np.array(LOGP) - step)) / 2e-6
        assert slope == pytest.approx(gradient[place[0]][place[1]], abs=1e-6)


def test_sft_is_the_mean_negative_logp_of_the_trained_tokens() -> None:
    value, gradient = value_and_gradient(make_sft(), batch())
    assert value == pytest.approx((1.0 + 0.5 + 2.0 + 0.7 + 1.2) / 5)
    np.testing.assert_allclose(gradient, -np.array(MASK) / 5, atol=1e-7)
    np.testing.assert_array_equal(make_sft().advantages(np.array([0.0, 0.5])), [1.0, 1.0])


@pytest.mark.parametrize(
    ("scores", "advantages"),
    [
        ([1.0, 0.0, 0.0, 0.5], [1.3055796924007037, -0.7833478154404222, -0.7833478154404222, 0.26111593848014075]),
        ([1.0], [0.0]),
        ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]),
        ([1.0, 0.0], [0.7071057811879616, -0.7071057811879616]),
    ],
)
def test_advantages_of_a_group(scores: list[float], advantages: list[float]) -> None:
    np.testing.assert_allclose(make_grpo().advantages(np.array(scores)), advantages, atol=1e-12)


def test_fractional_scores_stay_fractional() -> None:
    assert make_grpo().advantages(np.array([0.25, 0.75])).tolist() == pytest.approx([-0.7071048, 0.7071048], abs=1e-6)


def test_metrics_count_each_side_of_the_clip() -> None:
    metrics = make_grpo().loss(jnp.asarray(LOGP), batch()).metrics
    means = {name: float(total / count) for name, (total, count) in metrics.items()}
    ratios = np.exp(np.array(LOGP) - np.array(OLD))[np.array(MASK) > 0]
    assert means["ratio_mean"] == pytest.approx(ratios.mean())
    assert means["clip_high"] == pytest.approx(1 / 5)  # the first token: e^0.2 > 1.2, A > 0
    assert means["clip_low"] == 0.0
    assert means["kl_k1"] == pytest.approx(-np.log(ratios).mean(), abs=1e-6)
    assert means["kl_k3"] == pytest.approx((ratios - 1 - np.log(ratios)).mean(), abs=1e-6)


def test_at_ratio_one_the_clip_is_inactive_and_the_gradient_is_the_policy_gradient() -> None:
    _, gradient = value_and_gradient(make_grpo(), batch(old=LOGP))
    np.testing.assert_allclose(gradient, -np.array(ADVANTAGES) * np.array(MASK) / 5, atol=1e-6)


@pytest.mark.parametrize("algorithm", [make_grpo(), make_grpo(aggregate="sequence"), make_sft()])
def test_the_laws(algorithm: Algorithm) -> None:
    check_algorithm(algorithm)


def test_an_unknown_aggregate_is_refused() -> None:
    with pytest.raises(UsageError, match="aggregate = 'tokens', expected one of token, sequence"):
        make_grpo(aggregate="tokens")  # type: ignore[arg-type]
