"""Plays the solutions that an environment knows of its own tasks: which of these can be trusted?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunix_core.config import SandboxConfig, SuiteConfig
from tunix_core.contracts import EnvHandle, EnvOpener, Episode, Sandboxes, Scorer, TaskSource
from tunix_core.errors import EpisodeError, UsageError, failure_of
from tunix_core.plugins import Hub
from tunix_core.run.build import Bench, environments, prepare, rewards
from tunix_core.run.sandboxes import make_sandboxes
from tunix_core.types import Message, Score, Status, Task, derive_seed

GOLD = "gold"
Solutions = Mapping[str, Sequence[Message]]


@dataclass(frozen=True, slots=True)
class Checked:
    """A task's solutions, played.

    Attributes:
        scores: by solution's name, one per run; None where there was none.
        problem: why the task is not sound; "" when it is.
    """

    task: str
    scores: Mapping[str, Sequence[float | None]]
    problem: str = ""


def check_solutions(
    env: str,
    *,
    hub: Hub,
    split: str = "eval",
    n: int | None = None,
    runs: int = 1,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    sandbox: SandboxConfig | None = None,
) -> list[Checked]:
    """Plays the solutions of an environment's tasks. A task is sound when its gold gets the highest score in
    every run, no other solution gets it, and all runs agree.

    Args:
        n: how many tasks; None: all.
        runs: how often each solution is played, each time in a fresh environment.

    Raises:
        UsageError: an unknown id or option; an environment that knows no solutions; endless tasks without `n`.
    """
    config = SuiteConfig(env=env, name=env, split=split, options=dict(options or {}))  # type: ignore[arg-type]
    bench = prepare(config, hub)
    if not bench.spec.solutions:
        raise UsageError(f"{env} knows no solutions of its tasks: its spec has none. Only those that do can be checked")
    solutions = hub.load_object("envs", env, "solutions")
    tasks = _tasks(bench.tasks(split, seed), n)
    sandboxes = make_sandboxes(sandbox or SandboxConfig(), [bench], hub)
    return asyncio.run(_check_all(bench, hub, tasks, solutions, runs, seed, sandboxes))


def _tasks(source: TaskSource, n: int | None) -> list[Task]:
    from tunix_core.tasks import length_of

    length = length_of(source)
    if length is None and n is None:
        raise UsageError("its tasks are endless; say how many to check, with --n")
    return [source.get(index) for index in range(min(x for x in (length, n) if x is not None))]


async def _check_all(
    bench: Bench, hub: Hub, tasks: Sequence[Task], solutions: Any, runs: int, seed: int, sandboxes: Sandboxes | None
) -> list[Checked]:
    opener, scorer = environments(bench, hub, sandboxes), rewards(bench, hub)
    player = _Player(opener, scorer, seed, runs, bench.spec.score_range[1])
    try:
        if sandboxes is not None:
            await sandboxes.start()
        return list(await asyncio.gather(*(player.check(task, solutions(task)) for task in tasks)))
    finally:
        await opener.aclose()
        await scorer.aclose()
        if sandboxes is not None:
            await sandboxes.aclose()


class _Player:
    """Plays solutions, as many at once as there are cores."""

    def __init__(self, opener: EnvOpener, scorer: Scorer, seed: int, runs: int, top: float) -> None:
        self._opener, self._scorer, self._seed, self._runs, self._top = opener, scorer, seed, runs, top
        self._gate = asyncio.Semaphore(os.cpu_count() or 1)

    async def check(self, task: Task, solutions: Solutions) -> Checked:
        played = await asyncio.gather(
            *(self._play(task, actions) for actions in solutions.values() for _ in range(self._runs))
        )
        found = {name: played[at * self._runs : (at + 1) * self._runs] for at, name in enumerate(solutions)}
        scores = {name: [each.value for each in got] for name, got in found.items()}
        return Checked(task.id, scores, _problem(found, self._top))

    async def _play(self, task: Task, actions: Sequence[Message]) -> Score:
        async with self._gate:
            return await play(self._opener, self._scorer, task, derive_seed("check", self._seed, task.id), actions)


def _problem(found: Mapping[str, Sequence[Score]], top: float) -> str:
    for name, scores in found.items():
        values = [score.value for score in scores]
        lost = next((score.failure for score in scores if score.value is None), None)
        if lost is not None or None in values:
            return f"{name} got no score: {lost.message if lost else 'unknown'}"
        if len(set(values)) > 1:
            return f"runs of {name} don't agree: {values}"
        if (values[0] == top) != (name == GOLD):
            return f"{name} scores {values[0]:g}, and the highest is {top:g}"
    return ""


async def play(opener: EnvOpener, scorer: Scorer, task: Task, seed: int, actions: Sequence[Message]) -> Score:
    """One episode in which the policy says `actions`, scored. What goes wrong in it is the score's failure."""
    handle = None
    try:
        handle = await opener.open(task)
        return await scorer.score(await _played(handle, task, seed, actions))
    except EpisodeError as error:
        return Score(None, failure=failure_of(error))
    finally:
        if handle is not None:
            await handle.close()


async def _played(handle: EnvHandle, task: Task, seed: int, actions: Sequence[Message]) -> Episode:
    messages = [*(await handle.reset(seed)).messages]
    earned: list[float] = []
    info: dict[str, Any] = {}
    status: Status = "truncated"
    for action in actions:
        result = await handle.step(action)
        messages += [action, *result.observation]
        earned.append(result.reward)
        info |= result.info
        if result.done:
            status = "terminated" if result.terminated else "truncated"
            break
    return Episode(task, tuple(messages), tuple(earned), info, status, turns=len(earned), sandbox=handle.sandbox)
