"""Steps that must not count: gradients that are no numbers, and an engine that computes something else."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from tunix_core.config import TrainerConfig
from tunix_core.errors import Disagreement, NotFinite
from tunix_core.trainer.health import BROKEN_IN_A_ROW, Health, drop
from tunix_core.trainer.steps import Report


def report(*, broken: bool = False, applied: bool = True) -> Any:
    nothing: dict[str, Any] = {}
    return Report(np.float32(1), np.float32(1), np.bool_(applied), np.bool_(broken), nothing, nothing, nothing, nothing)


AGREED = {"agreement_mean": 1e-6, "agreement_max": 1e-5}
GOOD, BROKEN, EMPTY = report(), report(broken=True, applied=False), report(applied=False)


def test_a_step_that_is_no_number_is_counted_and_its_groups_are_kept(make: Any) -> None:
    kept = []
    health = Health(TrainerConfig(), lambda version, groups: kept.append((version, list(groups))))
    first, second = make.random_group(0), make.random_group(1)
    health.take(first)
    assert health.check(4, [GOOD], AGREED) == {"not_finite": 0.0}
    health.take(second)
    assert health.check(5, [BROKEN], AGREED) == {"not_finite": 1.0}
    assert kept == [(5, [second])]


def test_three_in_a_row_end_the_run_and_a_good_one_between_does_not() -> None:
    health = Health(TrainerConfig(), drop)
    for step in range(BROKEN_IN_A_ROW - 1):
        health.check(step, [BROKEN], AGREED)
    health.check(7, [GOOD], AGREED)
    health.check(8, [BROKEN], AGREED)
    health.check(9, [EMPTY], AGREED)  # nothing to train says nothing
    health.check(10, [BROKEN], AGREED)
    with pytest.raises(NotFinite, match=r"gradient of 3 steps in a row, up to step 11, was not finite"):
        health.check(11, [GOOD, BROKEN], AGREED)


def test_disagreement_is_warned_of_once_and_beyond_its_bound_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    health = Health(TrainerConfig(warn_disagreement=0.1, max_disagreement=1.0), drop)
    with caplog.at_level(logging.WARNING):
        health.check(0, [GOOD], AGREED)
        assert not caplog.records
        for step in (1, 2):
            health.check(step, [GOOD], {"agreement_mean": 0.01, "agreement_max": 0.3})
    assert [r.getMessage().split(" about")[0] for r in caplog.records] == [
        "step 1: trainer and engine disagree by up to 0.3 (mean 0.01)"
    ]
    with pytest.raises(Disagreement, match=r"over trainer.max_disagreement = 1"):
        health.check(3, [GOOD], {"agreement_mean": 0.01, "agreement_max": 1.2})


def test_without_bounds_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    health = Health(TrainerConfig(warn_disagreement=None), drop)
    health.check(0, [GOOD], {"agreement_mean": 9.0, "agreement_max": 99.0})
    assert not caplog.records
