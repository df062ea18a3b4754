"""Sees one group through: its members side by side, each retried where that may help, then scored together."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tunix_core.contracts import Context, RolloutRequest, Sampling
from tunix_core.profiling import span
from tunix_core.rollout import Suite, run_episode
from tunix_core.rollout.episode import as_episode
from tunix_core.scheduler.failures import FailureLog
from tunix_core.types import Group, SampleId, Task, Trajectory, derive_seed

log = logging.getLogger(__name__)
BACKOFF_S = 0.5  # before a sample's second attempt; twice as long before each further one
Observe = Callable[[Trajectory], None]
Spawn = Callable[[Coroutine[Any, Any, Trajectory]], "asyncio.Task[Trajectory]"]


class Tasks(Protocol):
    """The suite's tasks by ticket; see `tasks.TaskStream`."""

    def take(self) -> tuple[int, Task]: ...
    def give_back(self, ticket: int) -> None: ...
    def consume(self, ticket: int, scores: Sequence[float] = ()) -> None: ...
    def learn(self) -> None: ...
    def skip(self, task_id: str) -> None: ...
    def state(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """One suite as the scheduler sees it; see SuiteConfig."""

    suite: Suite
    tasks: Tasks
    sampling: Sampling
    max_turns: int
    group_size: int = 8
    min_group: int = 2
    oversample: int = 0
    zero_variance: Literal["keep", "refill"] = "keep"
    refill_limit: int = 1

    @property
    def members(self) -> int:
        """Samples that are started for one group."""
        return self.group_size + self.oversample

    @property
    def deadline_s(self) -> float:
        """Seconds after which no step waits for one of its groups: an episode's own limit, and its scoring's."""
        return self.suite.timeouts.episode_s + self.suite.timeouts.score_s


class GroupRunner:
    """Runs groups, at most `max_episodes` episodes at a time over all of them.

    Args:
        max_episodes: concurrent episodes.
        max_attempts: fresh environments a sample gets.
        seed: the run's.
        failures: is told every finished episode.
        observe: called with every finished episode, usable or not.
        timed: called with the suite and the seconds of every finished episode.
        freed: called when a member is through.
    """

    def __init__(
        self,
        max_episodes: int,
        max_attempts: int,
        seed: int,
        *,
        failures: FailureLog,
        observe: Observe,
        timed: Callable[[str, float], None],
        freed: Callable[[], None],
    ) -> None:
        self._clock = asyncio.get_running_loop().time
        self._gate = asyncio.Semaphore(max_episodes)
        self._max_attempts, self._seed, self._failures = max_attempts, seed, failures
        self._observe, self._timed, self._freed = observe, timed, freed
        self.members: Counter[str] = Counter()  # by suite: started, and not through
        self.running = 0  # those of them in an episode now
        self.aborted: Counter[str] = Counter()  # by suite: members that their group did not wait for

    async def run(self, plan: SuitePlan, index: int, task: Task, tries: int, spawn: Spawn) -> Group:
        """One group, scored. `tries`: how often it failed as a whole before; `spawn` makes a task of the run."""
        name, first = plan.suite.name, tries * self._max_attempts
        ids = [SampleId(name, index, sample, first) for sample in range(plan.members)]
        members = await self._first(plan, [self._start(plan, identity, task, spawn) for identity in ids])
        with span("reward.group"):
            return await _scored(plan, Group(name, index, task, members))

    def _start(self, plan: SuitePlan, identity: SampleId, task: Task, spawn: Spawn) -> asyncio.Task[Trajectory]:
        self.members[identity.suite] += 1
        member = spawn(self._member(plan, identity, task))
        member.add_done_callback(lambda _: self._through(identity.suite))
        return member

    def _through(self, suite: str) -> None:
        self.members[suite] -= 1
        self._freed()

    async def _first(self, plan: SuitePlan, members: Sequence[asyncio.Task[Trajectory]]) -> tuple[Trajectory, ...]:
        """Those that ended first, by sample, until `group_size` did so without a failure. What they scored
        plays no part; the others are cancelled, and close in their own time."""
        ended: list[Trajectory] = []
        pending = set(members)
        until = asyncio.FIRST_COMPLETED if plan.oversample else asyncio.FIRST_EXCEPTION  # else all are waited for
        try:
            while pending and _finished(ended) < plan.group_size:
                done, pending = await asyncio.wait(pending, return_when=until)
                ended += sorted((member.result() for member in done), key=lambda t: t.id.sample)
            self.aborted[plan.suite.name] += len(pending)
        finally:
            for member in pending:
                member.cancel()
        while _finished(ended) > plan.group_size:  # several at once: there is no first among them
            self.aborted[plan.suite.name] += 1
            del ended[max(i for i, t in enumerate(ended) if t.failure is None)]
        return tuple(sorted(ended, key=lambda t: t.id.sample))

    async def _member(self, plan: SuitePlan, identity: SampleId, task: Task) -> Trajectory:
        """One sample, retried in a fresh environment while its failure says that may help."""
        seed = derive_seed("env", self._seed, identity.suite, task.id)
        for attempt in range(self._max_attempts):
            if attempt:
                with span("wait.retry", sample=identity.sample):
                    await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            name = SampleId(identity.suite, identity.group, identity.sample, identity.attempt + attempt)
            request = RolloutRequest(name, task, seed, self._seed, plan.sampling, plan.max_turns)
            trajectory = await self._episode(request, plan)
            self._observe(trajectory)
            self._failures.episode(trajectory)
            if not (trajectory.failure and _retries(plan, trajectory)):
                break
        return trajectory

    async def _episode(self, request: RolloutRequest, plan: SuitePlan) -> Trajectory:
        if self._gate.locked():
            with span("wait.episode_slot", sample=request.id.sample):
                await self._gate.acquire()
        else:
            await self._gate.acquire()
        self.running += 1
        started = self._clock()
        try:
            trajectory = await run_episode(request, plan.suite)
        finally:
            self.running -= 1
            self._gate.release()
        self._timed(plan.suite.name, self._clock() - started)
        return trajectory


def _finished(ended: Sequence[Trajectory]) -> int:
    return sum(t.failure is None for t in ended)


def _retries(plan: SuitePlan, trajectory: Trajectory) -> bool:
    assert trajectory.failure is not None
    context = Context(suite=plan.suite.name, sample=trajectory.id, env=plan.suite.env)
    try:
        decision = plan.suite.hooks.decide("tunix_infra_failure", ctx=context, error=trajectory.failure)
    except Exception:
        log.warning("tunix_infra_failure raised; %s is retried as usual", trajectory.id, exc_info=True)
        decision = None
    return trajectory.failure.retry if decision is None else decision == "retry"


async def _scored(plan: SuitePlan, group: Group) -> Group:
    usable = group.survivors
    scores = [t.score for t in usable if t.score is not None]
    rescored = await plan.suite.scorer.score_group([as_episode(t) for t in usable], scores)
    by_id = {t.id: t.scored(score) for t, score in zip(usable, rescored, strict=True)}
    return Group(group.suite, group.index, group.task, tuple(by_id.get(t.id, t) for t in group.trajectories))
