"""What this package registers."""

from __future__ import annotations

import math
from typing import Any

from tunix_core import EnvSpec, Option, hookimpl

FROZEN_LAKE = EnvSpec(
    id="games/frozen-lake",
    target="tunix_env_games.frozen_lake:FrozenLake",
    tasks="tunix_env_games.frozen_lake:make_tasks",
    summary="Walk over random ice to the goal without falling into a hole, one word a turn.",
    options={
        "size": Option(4, "rows and columns of the lake"),
        "holes": Option(0.2, "the chance of each inner cell to be a hole"),
        "slippery": Option(False, "whether a step may slide to either side"),
    },
    score_range=(0.0, 1.0),
    chance_score=0.016,  # words drawn uniformly; exact, over lakes of the default size and share of holes
    max_turns=10,
)

GYM = EnvSpec(
    id="gym/*",
    target="tunix_env_games.gym:GymnasiumEnv",
    tasks="tunix_env_games.gym:make_tasks",
    summary="Any registered Gymnasium environment with discrete actions and a small observation, in text.",
    options={
        "actions": Option((), "names of the actions, in order; default: known names, else numbers"),
        "make": Option({}, "keyword arguments for gymnasium.make"),
    },
    score_range=(-math.inf, math.inf),
    max_turns=200,
    members="tunix_env_games.gym:members",
)


@hookimpl
def tunix_register_envs(register: Any) -> None:
    register(FROZEN_LAKE)
    register(GYM)
