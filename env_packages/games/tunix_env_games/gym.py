"""The family `gym/*`: every member is a Gymnasium id, and its tasks differ in the seed alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tunix_core import Task
from tunix_core.envs.gymnasium import GymnasiumEnv, check_gymnasium, playable_ids

__all__ = ["GymnasiumEnv", "GymnasiumTasks", "make_tasks", "members"]


class GymnasiumTasks:
    """An endless source: task i of a split and seed. The environment's seed follows from its id."""

    def __init__(self, split: Literal["train", "eval"], seed: int, name: str) -> None:
        self._split: Literal["train", "eval"] = split
        self._seed, self._name = seed, name

    def get(self, index: int) -> Task:
        payload = {"env": self._name, "split": self._split, "index": index}
        return Task(f"{self._split}-{self._seed}-{index}", payload, self._split)


def make_tasks(
    split: Literal["train", "eval"],
    seed: int,
    *,
    name: str,
    actions: Sequence[str] = (),
    make: Mapping[str, Any] | None = None,
) -> GymnasiumTasks:
    """Tasks of one Gymnasium id. Raises UsageError, with the reason, when it can't be played in text."""
    check_gymnasium(name, actions=actions, make=make)
    return GymnasiumTasks(split, seed, name)


def members() -> list[str]:
    """Names under which the family can likely be opened."""
    return playable_ids()
