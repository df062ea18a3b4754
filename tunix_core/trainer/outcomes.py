"""From a group's trajectories to the advantage of each trained token.

Does not know batches: an outcome's arrays are over the trained tokens of one trajectory, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tunix_core.config import CreditConfig
from tunix_core.contracts import Algorithm, Outcome
from tunix_core.types import Row, Trajectory


def outcome_of(
    trajectory: Trajectory, branches: Sequence[Row], env_weight: float, adaptive: Mapping[str, float]
) -> Outcome:
    """What a trajectory with a score came to; its advantages are still to be decided.

    Args:
        branches: its rows with trained tokens.
        env_weight: of the environment's step rewards in the score.
        adaptive: the algorithm's adaptive numbers.
    """
    score = trajectory.score
    assert score is not None and score.value is not None  # survivors have one
    trained = [row.mask > 0 for row in branches]
    empty = [np.empty(0, np.int32)]
    turns = np.concatenate([row.turns[kept] for row, kept in zip(branches, trained, strict=True)] or empty)
    behaviour = np.concatenate([row.logprobs[kept] for row, kept in zip(branches, trained, strict=True)] or empty)
    earned = env_weight * np.array(trajectory.step_rewards, np.float64)
    return Outcome(
        suite=trajectory.id.suite,
        group=trajectory.id.group,
        score=float(score.value),
        parts={name: float(value) for name, value in score.parts.items() if value is not None},
        turns=turns,
        rewards=_rewards(turns, earned, float(score.value)),
        behaviour_logp=behaviour.astype(np.float32),
        advantages=np.zeros(len(turns), np.float64),
        adaptive=adaptive,
    )


def _rewards(turns: np.ndarray, earned: np.ndarray, score: float) -> np.ndarray:
    """Each turn's reward at the last token trained in it or before; the rest of the score at the last token."""
    rewards = np.zeros(len(turns), np.float64)
    if len(turns):
        last = np.searchsorted(turns, np.arange(len(earned)), side="right") - 1
        np.add.at(rewards, np.maximum(last, 0), earned)
        rewards[-1] += score - earned.sum()
    return rewards


def decide(algorithm: Algorithm, outcomes: Sequence[Outcome], credit: CreditConfig) -> list[Outcome]:
    """The outcomes of one group with their advantages.

    Per trajectory, each token has its trajectory's. Per turn, a turn's return is Σ discount^j · reward of
    the j-th turn after it, and its advantage is that of a group in which this return stands
    - baseline "trajectory": in the place of its trajectory's own, among the others' whole returns;
    - baseline "turn": among the returns from the same turn on, of those that got there.
    """
    if not outcomes:
        return []
    scores = np.array([o.score for o in outcomes], np.float64)
    if algorithm.scores is not None:
        scores = algorithm.scores(outcomes)
    if credit.per == "trajectory":
        decided = algorithm.advantages(scores)
        return [replace(o, advantages=np.full(o.tokens, a)) for o, a in zip(outcomes, decided, strict=True)]
    returns = [_returns(o, score, credit.discount) for o, score in zip(outcomes, scores, strict=True)]
    by_turn = _by_turn if credit.baseline == "turn" else _by_trajectory
    advantages = by_turn(algorithm, returns)
    return [replace(o, advantages=a[o.turns]) for o, a in zip(outcomes, advantages, strict=True)]


def _returns(outcome: Outcome, score: float, discount: float) -> np.ndarray:
    """The discounted return of each turn, float64 [M]; what `score` has beyond the rewards is the last one's."""
    rewards = np.bincount(outcome.turns, outcome.rewards) if outcome.tokens else np.zeros(1)
    rewards[-1] += score - rewards.sum()
    for turn in reversed(range(len(rewards) - 1)):
        rewards[turn] += discount * rewards[turn + 1]
    return rewards


def _by_trajectory(algorithm: Algorithm, returns: Sequence[np.ndarray]) -> list[np.ndarray]:
    whole = np.array([r[0] for r in returns])
    advantages = []
    for member, own in enumerate(returns):
        groups = [np.where(np.arange(len(whole)) == member, value, whole) for value in own]
        advantages.append(np.array([algorithm.advantages(group)[member] for group in groups]))
    return advantages


def _by_turn(algorithm: Algorithm, returns: Sequence[np.ndarray]) -> list[np.ndarray]:
    advantages = [np.zeros(len(r)) for r in returns]
    for turn in range(max(map(len, returns))):
        there = [member for member, r in enumerate(returns) if len(r) > turn]
        for member, advantage in zip(
            there, algorithm.advantages(np.array([returns[m][turn] for m in there])), strict=True
        ):
            advantages[member][turn] = advantage
    return advantages
