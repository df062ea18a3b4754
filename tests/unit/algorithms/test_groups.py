"""Group statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.algorithms import centred, leave_one_out, normalised, overlong_penalty, relative_to_mean

scores = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12).map(np.array)
spread_scores = scores.filter(lambda s: np.ptp(s) > 0.1)


def test_figures() -> None:
    """Computed by hand from the formulas, in float64."""
    rewards = np.array([1.0, 0.0, 0.0, 0.5])
    np.testing.assert_allclose(centred(rewards), [0.625, -0.375, -0.375, 0.125], atol=1e-12)
    np.testing.assert_allclose(leave_one_out(rewards), [5 / 6, -0.5, -0.5, 1 / 6], atol=1e-12)
    expected = [1.3055796924007037, -0.7833478154404222, -0.7833478154404222, 0.26111593848014075]
    np.testing.assert_allclose(normalised(rewards), expected, atol=1e-12)
    np.testing.assert_allclose(relative_to_mean(rewards), [5 / 3, -1, -1, 1 / 3], atol=1e-12)


@given(st.floats(-1e3, 1e3), st.integers(1, 9))
def test_equal_scores_and_a_group_of_one_give_exactly_nothing(score: float, count: int) -> None:
    for fn in (centred, normalised, leave_one_out):
        assert not fn(np.full(count, score)).any()


@given(spread_scores, st.floats(-50, 50))
def test_a_shift_of_all_scores_changes_nothing(given_scores: np.ndarray, shift: float) -> None:
    for fn in (centred, normalised, leave_one_out):
        np.testing.assert_allclose(fn(given_scores + shift), fn(given_scores), atol=1e-6)


@given(spread_scores, st.floats(0.5, 20))
def test_scaling_changes_normalised_scores_by_no_more_than_the_epsilon(given_scores: np.ndarray, factor: float) -> None:
    np.testing.assert_allclose(normalised(given_scores * factor), normalised(given_scores), rtol=1e-4, atol=1e-9)


@given(scores, st.randoms(use_true_random=False))
def test_permuting_a_group_permutes_its_advantages(given_scores: np.ndarray, random: object) -> None:
    order = list(range(len(given_scores)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for fn in (centred, normalised, leave_one_out):
        np.testing.assert_allclose(fn(given_scores[order]), fn(given_scores)[order], atol=1e-9)


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], [1.0, np.nan], [np.inf]])
def test_what_is_no_group_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="scores of one group"):
        normalised(np.array(bad))


@given(st.integers(1, 50), st.integers(0, 200))
def test_the_penalty_of_length_only_grows_and_is_bounded(buffer: int, length: int) -> None:
    this, longer = overlong_penalty(np.array([length, length + 1]), 100, buffer, 2.0)
    assert -2.0 <= longer <= this <= 0.0
    assert this == 0.0 or length > 100 - buffer
    assert this == -2.0 or length < 100
