"""A trainer's steps as they are seen from outside, for the tests that compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tunix_core.config import TrainerConfig
from tunix_core.contracts import Algorithm
from tunix_core.trainer import Trainer, TrainerState
from tunix_core.types import Group

compilations: list[str] = []  # one entry for each program that was compiled
_made: dict[Any, tuple[Trainer, TrainerState]] = {}


def _note_compilation(event: str, duration_secs: float, **_: Any) -> None:
    if event.endswith("backend_compile_duration"):
        compilations.append(event)


jax.monitoring.register_event_duration_secs_listener(_note_compilation)


def first_state(
    model: Any, algorithms: Mapping[str, Algorithm], config: TrainerConfig, *, version: int = 0, **how: Any
) -> Trainer:
    """A trainer in its first state, compiled once for all tests that ask for it.

    The same arguments give the same object: use one before asking for the next.

    Args:
        algorithms: by suite.
        version: what its parameters are called.
        **how: Trainer's own.
    """
    key = (*algorithms.items(), repr(config), repr(how))
    if key not in _made:
        made = Trainer(model, model.init(0), algorithms, config, steps=10, **how)
        state = made.state()
        _made[key] = made, replace(state, optimizer=jax.device_get(state.optimizer))
    learner, first = _made[key]
    learner.restore(replace(first, version=version))
    return learner


def step(learner: Trainer, groups: Sequence[Group]) -> Mapping[str, float]:
    for group in groups:
        learner.accumulate(group)
    return learner.apply()


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def change(learner: Trainer, groups: Sequence[Group]) -> np.ndarray:
    """What one step does to the parameters; of SGD, −learning_rate · gradient."""
    before = flat(learner.weights().params)
    step(learner, groups)
    return flat(learner.weights().params) - before


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
