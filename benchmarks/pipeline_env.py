"""A plugin file of environments that take time, and that fail on purpose; and of models that never stop early.

An environment says "turn N ok" for `turns` steps. Each call (the reset, and every step) takes a time of
`mean_s` on average, in one of these shapes:

constant    always the same
lognormal   sigma 1
tail        a call in ten takes ten times as long as the others
bursts      in a quarter of each second, calls take four times as long as otherwise
start       constant, and the first call of an episode takes `start_s` more
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
from tunix_models.nano import load

from tunix_core import EngineSpec, EnvSpec, ModelSpec, Option, RewardSpec, StepResult, Task, Timeouts, hookimpl
from tunix_core.contracts import Policy
from tunix_core.envs import BaseTaskEnv
from tunix_core.errors import SandboxError
from tunix_core.rewards import reward
from tunix_core.testing.engine import FakeEngine

KINDS = ("raise", "hang", "nan", "type", "lost")
OPTIONS = {
    "mean_s": Option(0.0, "seconds a call takes on average"),
    "shape": Option("constant", "how they are distributed"),
    "start_s": Option(0.0, "seconds the first call takes more"),
    "turns": Option(3, "steps of an episode"),
    "faulty": Option(0.0, "the share of episodes that fail, in equal parts by kind and by first, middle and last step"),
    "kinds": Option(KINDS, "which ways to fail"),
    "salt": Option(0, "other draws"),
}
_made = itertools.count()


class Tasks:
    def __init__(self, split: str, seed: int) -> None:
        self.split, self.seed = split, seed

    def get(self, index: int) -> Task:
        return Task(f"{self.split}-{index}", {"prompt": f"task {index % 1000:03d}: say something"}, self.split)

    def __len__(self) -> int:
        raise TypeError("endless")


def make_tasks(split: str, seed: int) -> Tasks:
    return Tasks(split, seed)


class LatencyEnv(BaseTaskEnv):
    """Scores how many different letters an answer has, so that samples differ."""

    def __init__(
        self,
        task: Any = None,
        *,
        mean_s: float = 0.0,
        shape: str = "constant",
        start_s: float = 0.0,
        turns: int = 3,
        faulty: float = 0.0,
        kinds: tuple[str, ...] = KINDS,
        salt: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(task, **kwargs)
        self.mean_s, self.shape, self.start_s, self.turns = mean_s, shape, start_s, turns
        # Members of a group share their seed; what a call takes must differ between them all the same.
        self.draws = random.Random(f"{salt}/{self.full_task.id}/{next(_made)}")
        self.fault = self._drawn_fault(faulty, kinds)

    async def _initial_observation(self) -> str:
        await self._wait(self._takes_s())
        return self.task["prompt"]

    async def _step_impl(self, action: str) -> Any:
        if self.fault and self.fault[1] == self.step_count:
            await self._fail(self.fault[0])
        await self._wait(self._takes_s())
        if self.fault == ("type", self.step_count):
            return "not a step's result"
        spread = len(set(action)) / (1 + len(action))
        info = {"nan": True} if self.fault == ("nan", self.step_count) else {}
        return StepResult(f"turn {self.step_count} ok", spread / self.turns, self.step_count >= self.turns, info=info)

    async def _wait(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)

    async def _fail(self, kind: str) -> None:
        if kind == "raise":
            raise RuntimeError("the environment broke, as asked")
        if kind == "lost":
            raise SandboxError("the container is gone, as asked")
        if kind == "hang":
            await self._wait(3600.0)

    def _drawn_fault(self, share: float, kinds: tuple[str, ...]) -> tuple[str, int] | None:
        if self.draws.random() >= share:
            return None
        return self.draws.choice(kinds), self.draws.choice((1, (self.turns + 1) // 2, self.turns))

    def _takes_s(self) -> float:
        return takes_s(self.shape, self.mean_s, self.draws) + (self.start_s if self.step_count == 0 else 0.0)


def takes_s(shape: str, mean_s: float, draws: random.Random) -> float:
    """Seconds a call takes, `mean_s` on average."""
    if not mean_s or shape in ("constant", "start"):
        return mean_s
    if shape == "lognormal":
        return mean_s * draws.lognormvariate(-0.5, 1.0)
    if shape == "tail":
        return mean_s / 1.9 * (10.0 if draws.random() < 0.1 else 1.0)
    if shape == "bursts":
        return mean_s / 1.75 * (4.0 if time.monotonic() % 1.0 < 0.25 else 1.0)
    raise ValueError(f"no shape {shape!r}; there are constant, lognormal, tail, bursts, start")


class BlockingEnv(LatencyEnv):
    """The same with `def` methods, which block."""

    def _initial_observation(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _blocking(super()._initial_observation())

    def _step_impl(self, action: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _blocking(super()._step_impl(action))

    async def _wait(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this is what is to be tried


def _blocking(coroutine: Any) -> Any:
    """What a coroutine that awaits nothing returns."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it awaited something")


@reward(range=(0.0, 1.0))
def sometimes_nan(episode: Any) -> float:
    """NaN for an episode whose fault is that."""
    return math.nan if episode.info.get("nan") else min(1.0, sum(episode.step_rewards))


class _NeverStops:
    """A chat format without stop tokens: every turn has all the tokens it may have."""

    stop_tokens = ()

    def __init__(self, chat: Any) -> None:
        self.open, self.extend, self.parse = chat.open, chat.extend, chat.parse


def endless(random: int | None = 1) -> Policy:
    """The policy `models/nano`, whose turns end at their bound."""
    policy = load(random=random)
    return replace(policy, chat=_NeverStops(policy.chat))


def fake(policy: Policy, weights: Any, config: Any) -> FakeEngine:
    """An engine that says the same at once, as many tokens as it may."""
    said = np.random.default_rng(0).integers(97, 123, config.max_context).astype(np.int32)
    return FakeEngine(
        lambda request: said[: request.max_tokens], version_source=weights, max_context=config.max_context
    )


@hookimpl
def tunix_register_envs(register: Any) -> None:
    timeouts = Timeouts(episode_s=600.0)
    for name, cls in (("latency", "LatencyEnv"), ("blocking", "BlockingEnv")):
        target, tasks = f"pipeline_env:{cls}", "pipeline_env:make_tasks"
        register(EnvSpec(name, target, tasks, options=OPTIONS, max_turns=16, timeouts=timeouts))


@hookimpl
def tunix_register_engines(register: Any) -> None:
    register(EngineSpec("fake", "pipeline_env:fake"))


@hookimpl
def tunix_register_rewards(register: Any) -> None:
    register(RewardSpec("sometimes_nan", "pipeline_env:sometimes_nan"))


@hookimpl
def tunix_register_models(register: Any) -> None:
    register(ModelSpec("endless", "pipeline_env:endless", options={"random": Option(1, "a seed")}))
