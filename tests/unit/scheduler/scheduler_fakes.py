"""A suite without tokens, and a trainer that only consumes: what a scheduler needs to be tried."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tunix_core.config import SchedulerConfig
from tunix_core.contracts import Episode, Sampling
from tunix_core.errors import EnvError
from tunix_core.rollout import Suite
from tunix_core.run.build import QUIET
from tunix_core.run.pipeline import Pipeline
from tunix_core.scheduler import Mixture, SuitePlan
from tunix_core.specs import Timeouts
from tunix_core.testing.chat import FakeChatFormat
from tunix_core.testing.engine import FakeEngine, FixedWeights
from tunix_core.types import Group, Message, Opening, Score, StepResult, Task

Latency = Callable[[random.Random], float]


@dataclass
class FakeHandle:
    opener: FakeOpener
    task: Task
    steps: int = 0
    sandbox: None = None

    async def reset(self, seed: int) -> Opening:
        self.opener.resets.append((self.task.id, seed))
        return Opening((Message.of("user", "go"),))

    async def step(self, action: Message) -> StepResult:
        self.steps += 1
        hangs = self.opener.random.random() < self.opener.hanging
        await asyncio.sleep(1e9 if hangs else self.opener.latency(self.opener.random))
        if self.task.id in self.opener.poisoned or self.opener.random.random() < self.opener.failing:
            raise EnvError("it broke")
        return StepResult((Message.of("user", "next"),), 1.0, self.steps == self.opener.turns)

    async def close(self) -> None:
        self.opener.closed += 1


@dataclass
class FakeOpener:
    latency: Latency = lambda _: 0.0
    turns: int = 1
    failing: float = 0.0
    hanging: float = 0.0
    seed: int = 0
    poisoned: tuple[str, ...] = ()
    opened: int = 0
    closed: int = 0
    resets: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    async def open(self, task: Task) -> FakeHandle:
        self.opened += 1
        return FakeHandle(self, task)

    async def aclose(self) -> None: ...
    def statistics(self) -> dict[str, float]:
        return {}


class FakeScorer:
    def __init__(self, value: Callable[[Episode], float | None] = lambda e: sum(e.step_rewards)) -> None:
        self.value = value

    async def score(self, episode: Episode) -> Score:
        return Score(self.value(episode))

    async def score_group(self, episodes: Any, scores: Any) -> Any:
        return scores

    async def aclose(self) -> None: ...


class CountingTasks:
    """Tickets 0, 1, 2, …; remembers what became of each."""

    def __init__(self) -> None:
        self.next, self.returned, self.consumed, self.skipped = 0, [], [], []
        self.open: set[int] = set()

    def take(self) -> tuple[int, Task]:
        if self.returned:
            self.returned.remove(ticket := min(self.returned))
        else:
            ticket, self.next = self.next, self.next + 1
        self.open.add(ticket)
        return ticket, Task(f"t{ticket}")

    def give_back(self, ticket: int) -> None:
        self.open.remove(ticket)
        self.returned.append(ticket)

    def learn(self) -> None: ...
    def consume(self, ticket: int, scores: Any = ()) -> None:
        assert ticket not in self.consumed, f"ticket {ticket} consumed twice"
        self.open.remove(ticket)
        self.consumed.append(ticket)

    def skip(self, task_id: str) -> None:
        self.skipped.append(task_id)

    def state(self) -> dict[str, Any]:
        return {"next": self.next}


def suite(
    name: str, opener: FakeOpener, weights: FixedWeights | None = None, scorer: Any = None, **timeouts: float
) -> Suite:
    engine = FakeEngine(lambda request: b"yes", version_source=weights or FixedWeights())
    return Suite(
        name, f"fake/{name}", opener, scorer or FakeScorer(), engine, FakeChatFormat(), QUIET, Timeouts(**timeouts)
    )


class Bench:
    """The pipeline over fake suites, and a trainer that only counts.

    Args:
        openers: by suite.
        weights: of the mix, by suite.
        plans: what the suites' plans have beside group_size = 2 and min_group = 1.
        timeouts: of the suites.
    """

    def __init__(
        self,
        openers: dict[str, FakeOpener],
        weights: dict[str, float],
        groups_per_step: int,
        config: SchedulerConfig,
        *,
        train_s: float = 0.0,
        scorer: Any = None,
        timeouts: dict[str, float] | None = None,
        teaches: Any = lambda group: True,
        **plan: Any,
    ) -> None:
        self.source = FixedWeights()
        self.tasks = {name: CountingTasks() for name in openers}
        self.mixture = Mixture(weights, groups_per_step)
        self.config, self.train_s, self.teaches = config, train_s, teaches
        self.trained: list[tuple[int, Group]] = []
        self.refilled: list[Group] = []
        self.debts: list[dict[str, int]] = []
        self.openers = openers
        self.largest_queue = self.most_members = 0
        plan = {"group_size": 2, "min_group": 1} | plan
        self.plans = {
            name: SuitePlan(
                suite(name, opener, self.source, scorer, **(timeouts or {})),
                self.tasks[name],
                Sampling(),
                opener.turns,
                **plan,
            )
            for name, opener in openers.items()
        }

    def open(self) -> Pipeline:
        self.pipeline = Pipeline(self.plans, self.mixture, self.config, seed=7, teaches=self.teaches)
        self.scheduler, self.queue = self.pipeline.scheduler, self.pipeline.queue
        self.pipeline.start()
        return self.pipeline

    async def train(self, steps: int) -> None:
        pipeline = self.open()
        try:
            for version in range(steps):
                taken = await pipeline.collect(self.take)
                self.trained += [(version, group) for group in taken.groups]
                self.refilled += taken.refilled
                self.debts.append({name: self.scheduler.plan.left(name) for name in self.plans})
                await asyncio.sleep(self.train_s)
                if self.config.mode == "drain":
                    await self.scheduler.drained()
                self.source.version = version + 1
                self.scheduler.advance(version + 1)
        finally:
            await pipeline.aclose()

    async def take(self, group: Group) -> None:
        self.largest_queue = max(self.largest_queue, *map(self.queue.waiting_of, self.plans))
        self.most_members = max(self.most_members, int(self.scheduler.statistics()["episodes_running"]))
