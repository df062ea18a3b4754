"""A plugin file of environments and rewards that misbehave in every way a run must survive."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

from tunix_core import CurriculumSpec, EnvSpec, Option, RewardSpec, StepResult, Task, Timeouts, TrackerSpec, hookimpl
from tunix_core.envs import BaseTaskEnv
from tunix_core.rewards import reward


class Source:
    def __init__(self, split: str, seed: int) -> None:
        self.split, self.seed = split, seed

    def get(self, index: int) -> Task:
        return Task(f"{self.split}-{index}", {"prompt": f"say {index % 7}"}, self.split, gold=str(index % 7))

    def __len__(self) -> int:
        raise TypeError("endless")


def make_tasks(split: str, seed: int, **_: Any) -> Source:
    return Source(split, seed)


class Env(BaseTaskEnv):
    """One or two turns; scores the share of a letter, so that samples differ. Misbehaves by option."""

    def __init__(
        self, task: Any = None, *, failing: float = 0.0, hanging: float = 0.0, latency_s: float = 0.0, **kw: Any
    ) -> None:
        super().__init__(task, **kw)
        self.failing, self.hanging, self.latency_s = failing, hanging, latency_s

    async def _initial_observation(self) -> str:
        return self.task["prompt"]

    async def _step_impl(self, action: str) -> StepResult:
        await asyncio.sleep(self.latency_s * self.rng.random())
        chance = self._chance(action)
        if chance < self.failing:
            raise RuntimeError("the environment broke")
        if chance < self.failing + self.hanging:
            await asyncio.sleep(3600)
        return StepResult("more", len(set(action)) / (1 + len(action)), terminated=self.step_count >= 2)

    def _chance(self, action: str) -> float:
        """A number in [0, 1) that differs between samples and is the same in every run."""
        return (sum(action.encode()) * 7919 + self.step_count * 104729 + (self.seed or 0)) % 1000 / 1000


class Blocking(Env):
    """The same with `def` methods, which block."""

    def _initial_observation(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.task["prompt"]

    def _step_impl(self, action: str) -> StepResult:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._chance(action) < self.hanging:
            time.sleep(3600)
        return StepResult("more", len(set(action)) / (1 + len(action)), terminated=self.step_count >= 2)


class ByScore:
    """A curriculum: goes on from the task of the best mean score so far."""

    def __init__(self, source: Any, *, seed: int, stride: int = 3) -> None:
        self.stride, self.best, self.best_score = stride, seed % 5, -1.0

    def next_index(self, cursor: int, length: int | None) -> int:
        return self.best + self.stride * cursor

    def observe(self, index: int, scores: Any) -> None:
        if sum(scores) / len(scores) > self.best_score:
            self.best, self.best_score = index, sum(scores) / len(scores)

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_score": self.best_score}

    def restore(self, state: Any) -> None:
        self.best, self.best_score = state["best"], state["best_score"]


class Rows:
    """A tracker: a line of JSON a step."""

    def __init__(self, run_dir: Path) -> None:
        self.file = (run_dir / "tracked.jsonl").open("a")

    def log(self, step: int, metrics: Any) -> None:
        self.file.write(json.dumps({"logged_at": step, **metrics}) + "\n")

    def close(self) -> None:
        self.file.close()


def unlucky(episode: Any) -> bool:
    """One sample in four or so."""
    return sum(episode.final_text.encode()) % 4 == 0


@reward(range=(0.0, 1.0))
def nan(episode: Any) -> float:
    return math.nan if unlucky(episode) else 0.5


@reward(range=(0.0, 1.0))
def outside(episode: Any) -> float:
    return 7.0 if unlucky(episode) else 0.5


@reward(range=(0.0, 1.0))
def raising(episode: Any) -> float:
    if unlucky(episode):
        raise ValueError("the reward broke")
    return 0.5


@hookimpl
def tunix_register_envs(register: Any) -> None:
    options = {name: Option(0.0) for name in ("failing", "hanging", "latency_s")}
    more = {"max_turns": 2, "timeouts": Timeouts(step_s=0.5)}
    for name, target in (("env", "trouble:Env"), ("blocking", "trouble:Blocking")):
        register(EnvSpec(name, target, "trouble:make_tasks", "misbehaves", options, (0.0, 2.0), **more))


@hookimpl
def tunix_register_rewards(register: Any) -> None:
    for name in ("nan", "outside", "raising", "gone"):  # the last is registered, and not there
        register(RewardSpec(name, f"trouble:{name}"))


@hookimpl
def tunix_register_curricula(register: Any) -> None:
    register(CurriculumSpec("by-score", "trouble:ByScore", "for tests", {"stride": Option(3)}))


@hookimpl
def tunix_register_trackers(register: Any) -> None:
    register(TrackerSpec("rows", "trouble:Rows", "for tests"))
