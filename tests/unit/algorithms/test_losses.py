"""Masked sums, ratios, clips and KL estimators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.algorithms import (
    clipped_surrogate,
    k1,
    k2,
    k3,
    log_ratio,
    masked_sum,
    sequence_means,
    sequence_ratio,
    sequence_sum,
    sequence_sums,
    token_ratio,
    token_weights,
    trained_sequences,
    with_gradient_of,
)

LOGP = jnp.array([[-1.0, -0.5, -2.0], [-0.7, -1.2, -0.3]])
REF = jnp.array([[-1.1, -0.6, -1.8], [-0.8, -1.1, -0.5]])
MASK = jnp.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        (k1, 0.0, [[0.2, 0.2, 0.2], [0.2, 0.2, 0.0]]),
        (k2, 0.008, [[0.02, 0.02, -0.04], [0.02, -0.02, 0.0]]),
        (
            k3,
            0.008217186068739269,
            [[0.019032516393, 0.019032516393, -0.044280551632], [0.019032516393, -0.021034183615, 0.0]],
        ),
    ],
)
def test_kl_estimators(estimator: Any, value: float, gradient: Any) -> None:
    """Figures computed in float64 from the formulas in the docstrings, as a token mean."""

    def loss(logp: jax.Array) -> jax.Array:
        return masked_sum(estimator(logp, REF), MASK) / MASK.sum()

    found, slope = jax.value_and_grad(loss)(LOGP)
    assert float(found) == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(slope, gradient, atol=1e-6)


def test_a_masked_value_counts_nothing_even_when_it_is_not_a_number() -> None:
    values = jnp.array([[1.0, jnp.nan, 2.0, jnp.inf]])
    mask = jnp.array([[1.0, 0.0, 1.0, 0.0]])
    assert float(masked_sum(values, mask)) == 3.0
    gradient = jax.grad(lambda v: masked_sum(v, mask))(values)
    np.testing.assert_array_equal(gradient, mask)


def test_a_masked_ratio_is_one_and_has_no_gradient() -> None:
    logp, mask = jnp.array([[1e4, -1.0]]), jnp.array([[0.0, 1.0]])
    value, gradient = jax.value_and_grad(lambda x: jnp.exp(log_ratio(x, jnp.zeros((1, 2)), mask)).sum())(logp)
    assert float(value) == pytest.approx(1 + np.exp(-1.0))
    assert gradient[0, 0] == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.3, 1.0, -1.2, 0.0),  # pushed far enough
        (1.3, -1.0, 1.3, 1.0),
        (0.7, 1.0, -0.7, -1.0),
        (0.7, -1.0, 0.8, 0.0),  # pulled far enough
        (1.0, 2.0, -2.0, -2.0),
    ],
)
def test_the_clip_holds_only_what_has_moved_far_enough(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    value, gradient = jax.value_and_grad(lambda r: clipped_surrogate(r, jnp.float32(advantage), 0.2, 0.2))(ratio)
    assert float(value) == pytest.approx(loss)
    assert float(gradient) == pytest.approx(slope)


def packed() -> dict[str, Any]:
    """Three sequences in two rows; the second spans both. 4 marks padding."""
    return {
        "sequence_ids": jnp.array([[0, 0, 1, 1], [1, 2, 2, 4]]),
        "mask": jnp.array([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]),
        "sequences": 4,
    }


def test_sums_over_sequences_leave_out_what_is_masked() -> None:
    values = jnp.array([[9.0, 1.0, 2.0, 9.0], [3.0, 4.0, jnp.nan, 9.0]])
    np.testing.assert_array_equal(sequence_sum(values, packed()), [1.0, 5.0, 4.0, 0.0])
    np.testing.assert_array_equal(sequence_sums(values, packed()), [[1, 1, 5, 5], [5, 4, 4, 0]])


def test_token_weights_count_tokens_or_sequences() -> None:
    batch = packed()
    np.testing.assert_array_equal(token_weights(batch, "token"), batch["mask"])
    weights = token_weights(batch, "sequence")
    np.testing.assert_array_equal(weights, [[0.0, 1.0, 0.5, 0.0], [0.5, 1.0, 0.0, 0.0]])
    assert float(weights.sum()) == 3  # sequences


def test_means_and_ratios_of_sequences_leave_out_what_is_masked() -> None:
    values = jnp.array([[9.0, 1.0, 2.0, 9.0], [3.0, 4.0, jnp.nan, 9.0]])
    np.testing.assert_array_equal(sequence_means(values, packed()), [[1, 1, 2.5, 2.5], [2.5, 4, 4, 0]])
    batch = packed() | {"old_logp": jnp.zeros((2, 4))}
    np.testing.assert_allclose(sequence_ratio(values / 10, batch)[0], np.exp([0.1, 0.1, 0.25, 0.25]), rtol=1e-6)
    np.testing.assert_allclose(token_ratio(values / 10, batch)[1], np.exp([0.3, 0.4, 0, 0]), rtol=1e-6)


def test_sequences_are_counted_where_something_is_trained() -> None:
    batch = packed()
    assert float(trained_sequences(batch)) == 3
    assert float(trained_sequences(batch | {"mask": batch["mask"].at[1].set(0.0)})) == 2


def test_one_value_may_have_the_gradient_of_another() -> None:
    value, slope = jax.value_and_grad(lambda x: with_gradient_of(x**2, 5 * x))(3.0)
    assert (float(value), float(slope)) == (9.0, 5.0)
