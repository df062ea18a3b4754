"""Admits groups while the staleness bound and the mix leave room, and sees each one through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tunix_core.config import SchedulerConfig
from tunix_core.contracts import Context, RolloutRequest, Sampling
from tunix_core.errors import SuiteStarved
from tunix_core.profiling import span
from tunix_core.rollout import Suite, run_episode
from tunix_core.rollout.episode import as_episode
from tunix_core.scheduler.failures import FailureLog
from tunix_core.scheduler.mixture import Mixture
from tunix_core.scheduler.plan import StepPlan, Ticket
from tunix_core.types import Group, SampleId, Task, Trajectory, derive_seed

log = logging.getLogger(__name__)


class Tasks(Protocol):
    """The suite's tasks by ticket; see `tasks.TaskStream`."""

    def take(self) -> tuple[int, Task]: ...
    def give_back(self, ticket: int) -> None: ...
    def consume(self, ticket: int) -> None: ...
    def skip(self, task_id: str) -> None: ...
    def state(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """One suite as the scheduler sees it."""

    suite: Suite
    tasks: Tasks
    sampling: Sampling
    max_turns: int
    group_size: int = 8
    min_group: int = 2


class Scheduler:
    """Runs groups concurrently and hands them to `deliver`.

    Args:
        suites: by name.
        mixture: quotas per step.
        config: bounds; see SchedulerConfig.
        seed: the run's.
        deliver: takes a finished group; waits while the queue is full.
        observe: called with every finished episode, usable or not.
        closed: called when a group is no longer open, which may free a place in the step.
        version, consumed: where a resumed run goes on.
    """

    def __init__(
        self,
        suites: Mapping[str, SuitePlan],
        mixture: Mixture,
        config: SchedulerConfig,
        *,
        seed: int,
        deliver: Callable[[Group], Awaitable[None]],
        observe: Callable[[Trajectory], None] = lambda trajectory: None,
        closed: Callable[[], None] = lambda: None,
        version: int = 0,
        consumed: Mapping[str, int] | None = None,
    ) -> None:
        self._suites, self._mixture, self._config, self._seed = suites, mixture, config, seed
        self._deliver, self._observe, self._closed = deliver, observe, closed
        self.staleness_bound = 0 if config.mode == "on_policy" else config.max_staleness
        self.failures = FailureLog(config.max_failure_share, config.failure_window, config.quarantine_after)
        self.consumed: dict[str, int] = {name: 0 for name in suites} | dict(consumed or {})
        self._admitted: dict[Ticket, int] = {}  # every open group, and the version at its admission
        self._running: dict[Ticket, float] = {}  # those of them not finished, and when they started
        self._tries: dict[Ticket, int] = {}
        self._episodes = asyncio.Semaphore(config.max_episodes)
        self._episodes_running = 0
        self._holding = False
        self._room = asyncio.Event()
        self._settled = asyncio.Event()
        self.plan = self._plan(version)

    async def run(self) -> None:
        """Admits groups for ever; cancel it to stop. Raises what ends the run."""
        async with asyncio.TaskGroup() as running:
            while True:
                self._room.clear()
                name = self._next_suite()
                if name is None:
                    with span("wait.admission", reason=self._closed_by()):
                        await self._room.wait()
                    continue
                running.create_task(self._group(name, *self._admit(name)))

    def consume(self, group: Group) -> None:
        """The trainer took `group` into the current step."""
        ticket = (group.suite, group.index)
        self.plan.take(group.suite)
        self.consumed[group.suite] += 1
        self._close(ticket)
        self._suites[group.suite].tasks.consume(group.index)

    def give_back(self, group: Group) -> None:
        """`group` can't be trained (too stale, too few survivors): its task keeps its turn and seed."""
        ticket = (group.suite, group.index)
        self._close(ticket)
        self._suites[group.suite].tasks.give_back(group.index)

    def advance(self, version: int) -> None:
        """Weights `version` are out: opens the next step and lets new groups in."""
        self.plan = self._plan(version)
        self._holding = False
        self._room.set()

    async def drained(self) -> None:
        """Lets nothing new in, and returns when every admitted group is through; `advance` opens again."""
        self._holding = True
        while self._running:
            self._settled.clear()
            await self._settled.wait()

    def state(self) -> dict[str, Any]:
        """Cursors and counts at a step's boundary; survives JSON."""
        return {
            "tasks": {name: dict(plan.tasks.state()) for name, plan in self._suites.items()},
            "consumed": dict(self.consumed),
        }

    def mix_error(self) -> float:
        """max over suites of |share of consumed groups - share asked|."""
        return self._mixture.error(self.consumed)

    def statistics(self) -> dict[str, float]:
        """Open groups and the age of the oldest, for progress and for a stalled run's report."""
        now = asyncio.get_running_loop().time()
        return {
            "groups_running": len(self._running),
            "groups_waiting": len(self._admitted) - len(self._running),
            "oldest_group_s": max((now - started for started in self._running.values()), default=0.0),
            "episodes_running": self._episodes_running,
        }

    def waiting_for(self) -> str:
        """What the current step waits for, in words."""
        missing = self.plan.missing
        return ", ".join(f"{count} group(s) of {name}" for name, count in missing.items()) or "the trainer"

    # ---- admission ----
    def _plan(self, version: int) -> StepPlan:
        return StepPlan(version, self._mixture, self.staleness_bound, self._admitted)

    def _next_suite(self) -> str | None:
        """The suite whose next group is due first, of those with room under the bound; or None."""
        if self._holding or self._episodes_running >= self._config.max_episodes:
            return None
        horizon = self.plan.version + self.staleness_bound + 1
        due: dict[str, float] = {}
        for name in self._suites:
            ahead = self.consumed[name] + sum(1 for suite, _ in self._admitted if suite == name)
            allowed = self._mixture.total(name, horizon)
            if ahead < allowed:
                due[name] = (ahead + 1) / self._mixture.shares[name]
        return min(due, key=lambda name: due[name]) if due else None

    def _closed_by(self) -> str:
        """What keeps the next group from starting."""
        if self._holding:
            return "drain"
        return "max_episodes" if self._episodes_running >= self._config.max_episodes else "max_staleness"

    def _admit(self, name: str) -> tuple[int, Task]:
        try:
            index, task = self._suites[name].tasks.take()
        except SuiteStarved as error:
            raise SuiteStarved(f"suite {name!r}: {error}; {self.failures.example(name)}") from error
        self._admitted[name, index] = self.plan.version
        self._running[name, index] = asyncio.get_running_loop().time()
        return index, task

    def _close(self, ticket: Ticket) -> None:
        del self._admitted[ticket]
        self._closed()
        self._room.set()

    # ---- groups ----
    async def _group(self, name: str, index: int, task: Task) -> None:
        with span("group", suite=name, group=index):
            await self._whole_group(name, index, task)

    async def _whole_group(self, name: str, index: int, task: Task) -> None:
        plan = self._suites[name]
        first = self._tries.get((name, index), 0) * self._config.max_attempts
        members = await asyncio.gather(
            *(self._member(plan, SampleId(name, index, sample, first), task) for sample in range(plan.group_size))
        )
        with span("reward.group"):
            group = await self._score_group(plan, Group(name, index, task, tuple(members)))
        del self._running[name, index]
        self._settled.set()
        if len(group.survivors) >= min(plan.min_group, plan.group_size):
            context = Context(suite=name, env=plan.suite.env)
            plan.suite.hooks.notify("tunix_group_ready", ctx=context, group=group)
            with span("wait.queue_room"):
                await self._deliver(group)
        else:
            self._fail(group)

    async def _member(self, plan: SuitePlan, identity: SampleId, task: Task) -> Trajectory:
        """One sample, retried in a fresh environment while its failure says that may help."""
        seed = derive_seed("env", self._seed, identity.suite, task.id)
        for attempt in range(self._config.max_attempts):
            name = SampleId(identity.suite, identity.group, identity.sample, identity.attempt + attempt)
            request = RolloutRequest(name, task, seed, self._seed, plan.sampling, plan.max_turns)
            trajectory = await self._episode(request, plan)
            self._observe(trajectory)
            self.failures.episode(trajectory)
            if not (trajectory.failure and self._retries(plan, trajectory)):
                break
        return trajectory

    async def _episode(self, request: RolloutRequest, plan: SuitePlan) -> Trajectory:
        with span("wait.episode_slot", sample=request.id.sample):
            await self._episodes.acquire()
        self._episodes_running += 1
        try:
            return await run_episode(request, plan.suite)
        finally:
            self._episodes_running -= 1
            self._episodes.release()
            self._room.set()

    def _retries(self, plan: SuitePlan, trajectory: Trajectory) -> bool:
        assert trajectory.failure is not None
        context = Context(suite=plan.suite.name, sample=trajectory.id, env=plan.suite.env)
        try:
            decision = plan.suite.hooks.decide("tunix_infra_failure", ctx=context, error=trajectory.failure)
        except Exception:
            log.warning("tunix_infra_failure raised; %s is retried as usual", trajectory.id, exc_info=True)
            decision = None
        return trajectory.failure.retry if decision is None else decision == "retry"

    async def _score_group(self, plan: SuitePlan, group: Group) -> Group:
        usable = group.survivors
        scores = [t.score for t in usable if t.score is not None]
        rescored = await plan.suite.scorer.score_group([as_episode(t) for t in usable], scores)
        by_id = {t.id: t.scored(score) for t, score in zip(usable, rescored, strict=True)}
        return Group(group.suite, group.index, group.task, tuple(by_id.get(t.id, t) for t in group.trajectories))

    def _fail(self, group: Group) -> None:
        """Too few survivors: the task goes back for another turn, or is set aside for good."""
        ticket = (group.suite, group.index)
        self._tries[ticket] = self._tries.get(ticket, 0) + 1
        bad_gold = any(t.failure and t.failure.kind == "bad_gold" for t in group.trajectories)
        if bad_gold:
            self.failures.set_aside(group.suite, group.task.id)
        if bad_gold or self.failures.group(group.suite, group.task.id):
            self._suites[group.suite].tasks.skip(group.task.id)
            self._suites[group.suite].tasks.consume(group.index)
            self._close(ticket)
        else:
            self.give_back(group)
