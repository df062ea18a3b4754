"""PPO with a critic (Schulman et al. 2017, "Proximal Policy Optimization Algorithms")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

import numpy as np

from tunix_core.algorithms import (
    Aggregate,
    Algorithm,
    Critic,
    Outcome,
    Shared,
    clip_objective,
    clipped_value_loss,
    gae,
    policy_gradient,
    whitened,
)


def make_ppo(
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    gamma: float = 1.0,
    lam: float = 0.95,
    value_clip: float = 0.2,
    value_learning_rate: float | None = None,
    whiten: bool = True,
    aggregate: Aggregate = "token",
    **shared: Unpack[Shared],
) -> Algorithm:
    """δ = r + gamma V_next − V;  A = δ + gamma lam A_next over the sampled tokens alone, so that value and
    advantage are carried across what a tool wrote; l as in GRPO. The critic learns R = A + V by
    ½ max((V − R)², (V_old + clip(V − V_old, ±value_clip) − R)²).

    A turn's reward stands at its last token. There is no group baseline: a group of one has a signal.

    Args:
        eps_low, eps_high, aggregate: as in GRPO.
        gamma, lam: of the advantage estimate, per token.
        value_clip: how far a value may move in a step and still be pulled.
        value_learning_rate: the critic's; None: the policy's.
        whiten: A is taken to mean 0 and variance 1 over the step's tokens, after R is.
    """

    def estimated(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        found = [_estimated(o, gamma, lam) for o in outcomes]
        return whitened(found) if whiten else found

    algorithm = policy_gradient(
        "algorithms/ppo",
        lambda scores: np.array(scores, np.float64),
        clip_objective(eps_low, eps_high),
        aggregate=aggregate,
        over_step=estimated,
        **shared,
    )
    return replace(algorithm, critic=Critic(partial(clipped_value_loss, clip=value_clip), value_learning_rate))


def _estimated(outcome: Outcome, gamma: float, lam: float) -> Outcome:
    advantages = gae(outcome.rewards, outcome.values, gamma, lam)
    return replace(outcome, advantages=advantages, returns=advantages + outcome.values)
