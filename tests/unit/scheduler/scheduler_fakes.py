"""A suite without tokens, and a trainer that only consumes: what a scheduler needs to be tried."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tunix_core.contracts import Episode
from tunix_core.errors import EnvError
from tunix_core.rollout import Suite
from tunix_core.testing.chat import FakeChatFormat
from tunix_core.testing.engine import FakeEngine, FixedWeights
from tunix_core.types import Message, Opening, Score, StepResult, Task

Latency = Callable[[random.Random], float]


class NoHooks:
    def notify(self, hook: str, **arguments: Any) -> None: ...
    def collect(self, hook: str, **arguments: Any) -> Any:
        return ()

    def decide(self, hook: str, **arguments: Any) -> Any:
        return None


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
        await asyncio.sleep(self.opener.latency(self.opener.random))
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

    def take(self) -> tuple[int, Task]:
        if self.returned:
            ticket = self.returned.pop(0)
        else:
            ticket, self.next = self.next, self.next + 1
        return ticket, Task(f"t{ticket}")

    def give_back(self, ticket: int) -> None:
        self.returned.append(ticket)

    def consume(self, ticket: int) -> None:
        assert ticket not in self.consumed, f"ticket {ticket} consumed twice"
        self.consumed.append(ticket)

    def skip(self, task_id: str) -> None:
        self.skipped.append(task_id)

    def state(self) -> dict[str, Any]:
        return {"next": self.next}


def suite(name: str, opener: FakeOpener, weights: FixedWeights | None = None, scorer: Any = None) -> Suite:
    engine = FakeEngine(lambda request: b"yes", version_source=weights or FixedWeights())
    return Suite(name, f"fake/{name}", opener, scorer or FakeScorer(), engine, FakeChatFormat(), NoHooks())
