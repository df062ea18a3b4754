"""Scales taken over the whole step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunix_core.algorithms import Outcome, group_advantages, leave_one_out, rescaled, whitened
from tunix_core.errors import UsageError


def outcome(advantage: float, tokens: int = 2, suite: str = "a") -> Outcome:
    zeros = np.zeros(tokens)
    return Outcome(suite, 0, 0.0, {}, zeros.astype(np.int32), zeros, zeros, np.full(tokens, advantage))


def first(outcomes: Any) -> list[float]:
    return [float(o.advantages[0]) for o in outcomes]


def test_a_trajectory_counts_once_whatever_its_length() -> None:
    found = rescaled([outcome(1.0, 9), outcome(-1.0), outcome(3.0, 1)])
    np.testing.assert_allclose(first(found), np.array([1, -1, 3]) / (2 + 1e-6))
    assert [o.tokens for o in found] == [9, 2, 1]
    centre = rescaled([outcome(1.0, 9), outcome(-1.0), outcome(3.0, 1)], centre=True)
    np.testing.assert_allclose(first(centre), np.array([0, -2, 2]) / (2 + 1e-6))


def test_tokens_of_one_trajectory_keep_their_differences() -> None:
    turns = replace(outcome(0.0), advantages=np.array([0.0, 2.0]))
    found = rescaled([turns, outcome(-1.0)])
    np.testing.assert_allclose(found[0].advantages, np.array([0, 2]) / (np.sqrt(2) + 1e-6))


def test_suites_are_scaled_apart() -> None:
    small, large = [outcome(x) for x in (1.0, -1.0)], [outcome(x, suite="b") for x in (1e3, -1e3)]
    apart = first(rescaled([*small, *large], by_suite=True))
    np.testing.assert_allclose(apart, np.array([1, -1, 1, -1]) / np.sqrt(2), rtol=1e-5)
    at_once = first(rescaled([*small, *large]))
    assert abs(at_once[0]) < 2e-3 and at_once[2] > 0.8
    np.testing.assert_allclose(first(whitened([*small, *large], by_suite=True)), np.sqrt([0.75] * 4) * [1, -1, 1, -1])


def test_what_does_not_vary_has_no_scale() -> None:
    assert first(rescaled([outcome(0.0), outcome(0.0)])) == [0.0, 0.0]
    assert first(whitened([outcome(2.0, 1)])) == [0.0]


def test_the_stages_of_each_scope() -> None:
    scores = np.array([1.0, 0.0, 0.0, 0.5])
    by_group, none = group_advantages("group"), group_advantages("none", leave_one_out)
    assert by_group[1] is None and none == (leave_one_out, None)
    assert by_group[0](scores)[0] == pytest.approx(1.3055796924)
    for scope in ("batch", "suite"):
        advantages, over_step = group_advantages(scope, leave_one_out)  # type: ignore[arg-type]
        assert advantages is leave_one_out and over_step is not None
    with pytest.raises(UsageError, match="normalise = 'all', expected one of group, batch, suite, none"):
        group_advantages("all")  # type: ignore[arg-type]
