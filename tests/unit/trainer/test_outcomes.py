"""Credit: which token gets which part of a score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.algorithms import centred, leave_one_out, normalised
from tunix_core.config import CreditConfig
from tunix_core.contracts import Algorithm, LossTerms, Outcome
from tunix_core.trainer.outcomes import decide, outcome_of
from tunix_core.types import Score, TokenSpan

TURN = CreditConfig(per="turn")
WHOLE = CreditConfig()


def algorithm(advantages: Any = centred, **fields: Any) -> Algorithm:
    return Algorithm("x/y", advantages, lambda logp, batch: LossTerms(0.0, 0.0, {}), **fields)


def outcome(rewards: list[float], tokens: int = 2, score: float | None = None) -> Outcome:
    """`tokens` trained tokens in each turn, whose reward stands at the last; the score is their sum."""
    turns = np.repeat(np.arange(len(rewards), dtype=np.int32), tokens)
    placed = np.zeros(len(turns))
    placed[tokens - 1 :: tokens] = rewards
    zeros = np.zeros(len(turns))
    total = sum(rewards) if score is None else score
    return Outcome("s", 0, total, {}, turns, placed, zeros.astype(np.float32), zeros)


def of_turns(outcomes: list[Outcome]) -> list[list[float]]:
    return [[float(o.advantages[o.turns == turn][0]) for turn in np.unique(o.turns)] for o in outcomes]


def answered(make: Any, score: Score, rewards: tuple[float, ...], turns: tuple[int, ...] = (0, 1, 2)) -> Outcome:
    """A trajectory with two sampled tokens in each of `turns`."""
    spans = [make.span([1], False)]
    for turn in turns:
        spans += [replace(make.span([2, 3], True, logp=-1.0 - turn), turn=turn), TokenSpan.forced([4], turn=turn)]
    trajectory = replace(make.trajectory(spans, 0.0), score=score, step_rewards=rewards)
    branches = [row for row in trajectory.rows() if row.mask.any()]
    return outcome_of(trajectory, branches, 0.5, {"kl_weight": 0.1})


def test_a_turns_reward_stands_at_its_last_token_and_the_rest_of_the_score_at_the_end(make: Any) -> None:
    found = answered(make, Score(2.0, {"env": 1.0, "late": None, "x/bonus": 1.5}), (0.0, 1.0, 0.0))
    assert found.turns.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.rewards.tolist() == [0, 0, 0, 0.5, 0, 1.5]
    assert found.behaviour_logp.tolist() == [-1, -1, -2, -2, -3, -3]
    assert (found.score, dict(found.parts)) == (2.0, {"env": 1.0, "x/bonus": 1.5})
    assert (found.tokens, found.adaptive, found.advantages.any()) == (6, {"kl_weight": 0.1}, False)


def test_the_reward_of_a_turn_without_a_trained_token_stands_at_the_last_before(make: Any) -> None:
    found = answered(make, Score(1.0), (0.2, 0.4, 0.6, 0.8), turns=(0, 2))
    assert found.rewards.tolist() == pytest.approx([0, 0.3, 0, 0.7])


def test_per_trajectory_every_token_has_the_advantage_of_its_sample() -> None:
    decided = decide(algorithm(normalised), [outcome([1.0]), outcome([0.0, 0.0], tokens=3)], WHOLE)
    np.testing.assert_allclose(decided[0].advantages, np.full(2, 0.7071057811879616))
    np.testing.assert_allclose(decided[1].advantages, np.full(6, -0.7071057811879616))
    assert decide(algorithm(), [], WHOLE) == []


def test_per_turn_a_return_is_what_comes_after() -> None:
    """Against the others' whole returns: [1, 1], so that the baseline of the first is 1 throughout."""
    group = [outcome([0.0, 2.0, 1.0]), outcome([1.0]), outcome([0.0, 1.0])]
    plain = of_turns(decide(algorithm(leave_one_out), group, TURN))
    assert plain == [[3 - 1, 3 - 1, 1 - 1], [1 - 2], [1 - 2, 1 - 2]]
    half = of_turns(decide(algorithm(leave_one_out), group, replace(TURN, discount=0.5)))
    wholes = [0 + 0.5 * 2 + 0.25 * 1, 1.0, 0.5]
    assert half[0] == pytest.approx([wholes[0] - 0.75, 2 + 0.5 - 0.75, 1 - 0.75])
    assert half[2] == pytest.approx([0.5 - (wholes[0] + 1) / 2, 1 - (wholes[0] + 1) / 2])


def test_a_baseline_of_the_turn_compares_those_that_got_there() -> None:
    group = [outcome([0.0, 2.0, 1.0]), outcome([1.0]), outcome([0.0, 1.0])]
    decided = of_turns(decide(algorithm(centred), group, replace(TURN, baseline="turn")))
    assert decided[0] == pytest.approx([3 - 5 / 3, 3 - 2, 0])
    assert decided[1] == pytest.approx([1 - 5 / 3])
    assert decided[2] == pytest.approx([1 - 5 / 3, 1 - 2])


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.integers(1, 4), st.sampled_from(["trajectory", "turn"]))
def test_a_reward_at_the_end_without_discount_is_credited_as_the_trajectory_is(
    scores: list[float], turns: int, baseline: Any
) -> None:
    group = [outcome([0.0] * (turns - 1) + [score]) for score in scores]
    for advantages in (centred, leave_one_out, normalised):
        by_turn = decide(algorithm(advantages), group, replace(TURN, baseline=baseline))
        whole = decide(algorithm(advantages), group, WHOLE)
        for a, b in zip(by_turn, whole, strict=True):
            np.testing.assert_allclose(a.advantages, b.advantages, atol=1e-9)


def test_scores_may_be_shaped_before_they_are_compared() -> None:
    short = algorithm(scores=lambda group: np.array([o.score - o.tokens for o in group]))
    group = [outcome([1.0], tokens=1), outcome([0.0, 1.0], tokens=2)]
    assert of_turns(decide(short, group, WHOLE)) == [[1.5], [-1.5, -1.5]]
    by_turn = of_turns(decide(short, group, replace(TURN, baseline="turn")))
    assert by_turn == [[1.5], [-1.5, 0.0]]  # the penalty is the last turn's
