"""What a step says of itself: scores as they were given, and who had none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tunix_core.run.metrics import StepMetrics
from tunix_core.run.pipeline import Taken
from tunix_core.types import Failure, Group, SampleId, Score, Task, TokenSpan, Trajectory


def group(index: int, *scores: float | None) -> Group:
    """A member for each score; None: it failed."""
    return Group("s", index, Task("t"), tuple(member(index, i, score) for i, score in enumerate(scores)))


def member(index: int, sample: int, score: float | None, **fields: Any) -> Trajectory:
    failure = Failure("env_raised", "env.step", "it broke") if score is None else None
    said = TokenSpan(np.array([1], np.int32), True, np.zeros(1, np.float32), np.zeros(1, np.int32))
    name = SampleId("s", index, sample)
    return Trajectory(name, "x/env", Task("t"), 0, (said,), score=Score(score), failure=failure, **fields)


def told(taken: Taken, ended: Sequence[Trajectory] = ()) -> dict[str, float]:
    metrics = StepMetrics(["s"])
    for trajectory in ended:
        metrics.episode(trajectory)
    asyncio.run(metrics.groups(taken))
    return dict(metrics._told.row(0))


def test_the_score_is_the_mean_of_what_the_samples_scored() -> None:
    """Neither an advantage, whose mean is 0, nor a mean of the groups' means."""
    found = told(Taken([group(0, 1.0, 0.0, 0.5), group(1, 3.0)]))
    assert found["suite/s/score"] == pytest.approx(4.5 / 4)
    assert found["suite/s/signal_share"] == 0.5


def test_groups_that_were_replaced_count_in_the_score_and_samples_without_one_do_not() -> None:
    found = told(Taken([group(0, 1.0, None, 0.0)], refilled=[group(1, 0.0, 0.0)]))
    assert found["suite/s/score"] == 0.25 and found["suite/s/signal_share"] == 0.5
    assert (found["suite/s/groups"], found["suite/s/groups_refilled"]) == (1, 1)


def test_where_nothing_scored_there_is_no_score() -> None:
    found = told(Taken([group(0, None, None)]))
    assert "suite/s/score" not in found and found["suite/s/groups"] == 1


def test_the_share_without_a_score_is_of_the_episodes_that_ended() -> None:
    ended = [member(0, i, score, timing={"total": i, "env": 1.0}, turns=2) for i, score in enumerate([1.0, None, 0.0])]
    found = told(Taken(), ended)
    assert found["suite/s/none_share"] == pytest.approx(1 / 3)
    assert (found["suite/s/episodes"], found["suite/s/latency_s"], found["suite/s/turns"]) == (3, 1.0, 2)
