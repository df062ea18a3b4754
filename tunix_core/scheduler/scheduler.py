"""Admits groups while the staleness bound and the mix leave room, and keeps account of each one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tunix_core.config import SchedulerConfig
from tunix_core.contracts import Context
from tunix_core.errors import SuiteStarved
from tunix_core.profiling import span
from tunix_core.scheduler.concurrency import Concurrency, Statistics
from tunix_core.scheduler.failures import FailureLog
from tunix_core.scheduler.groups import GroupRunner, SuitePlan
from tunix_core.scheduler.ledger import Ledger, Ticket
from tunix_core.scheduler.mixture import Mixture
from tunix_core.scheduler.patience import Patience
from tunix_core.scheduler.plan import StepPlan
from tunix_core.types import Group, Task, Trajectory

log = logging.getLogger(__name__)


class Scheduler:
    """Runs groups concurrently and hands them to `deliver`. To be made on the event loop it runs on.

    Args:
        suites: by name.
        mixture: quotas per step.
        config: bounds; see SchedulerConfig.
        seed: the run's.
        deliver: takes a finished group; waits while the queue is full.
        observe: called with every finished episode, usable or not.
        closed: called when what the step accepts, or waits for, may have changed.
        engine, slots: the engine's statistics, and its slots; None: concurrency is not adapted to it.
        steps: of the whole run: nothing is started for later ones.
        version: where a resumed run goes on.
        saved: what `state` gave then.
        waiting: groups that were finished then, and the versions they were admitted at.
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
        engine: Statistics = dict,
        slots: int | None = None,
        steps: int | None = None,
        version: int = 0,
        saved: Mapping[str, Any] | None = None,
        waiting: Sequence[tuple[Group, int]] = (),
    ) -> None:
        self._suites, self._mixture, self._config = suites, mixture, config
        self._deliver, self._closed, self._steps = deliver, closed, steps
        self._clock = asyncio.get_running_loop().time
        self.staleness_bound = 0 if config.mode == "on_policy" else config.max_staleness
        self.failures = FailureLog(config.max_failure_share, config.failure_window, config.quarantine_after)
        self.concurrency = Concurrency(
            {name: plan.members for name, plan in suites.items()}, config.max_episodes, slots=slots, engine=engine
        )
        self._groups = GroupRunner(
            config.max_episodes,
            config.max_attempts,
            seed,
            failures=self.failures,
            observe=observe,
            timed=self._timed,
            freed=self._freed,
        )
        self._ledger = Ledger()  # every open group
        self._running: dict[Ticket, float] = {}  # those of them not finished, and when they started
        self._jobs: dict[Ticket, asyncio.Task[None]] = {}
        self._tries: dict[Ticket, int] = {}
        self._place_tries: Counter[str] = Counter()  # groups without a signal that the current place has seen
        self._holding = self._full = False  # what keeps admission from letting anything in
        self._room = asyncio.Event()
        self._stirred = asyncio.Event()
        self._settled = asyncio.Event()
        self._restore(saved or {}, waiting)
        self._patience = Patience(suites, mixture, config, self._clock)
        self._opened_s = self._clock()
        self.plan = self._plan(version)

    async def run(self) -> None:
        """Admits groups for ever; cancel it to stop. Raises what ends the run."""
        async with asyncio.TaskGroup() as running:
            running.create_task(self._keep_patience(), name="patience")
            while True:
                self._room.clear()
                name = self._next_suite()
                if name is None:
                    with span("wait.admission", reason=self._closed_by()):
                        await self._room.wait()
                    continue
                index, task = self._admit(name)
                self._jobs[name, index] = running.create_task(self._group(name, index, task, running))
                await asyncio.sleep(0)  # a step may let in thousands of episodes, and others have a turn between them

    def consume(self, group: Group, teaches: bool = True) -> bool:
        """The trainer took `group` into the current step; `teaches`: it carries a signal.

        Returns:
            False when its place stays open for a group that does: this one is not to be trained.
        """
        name, plan = group.suite, self._suites[group.suite]
        self._place_tries[name] += not teaches
        refilled = not teaches and plan.zero_variance == "refill" and self._place_tries[name] < plan.refill_limit
        if refilled:
            self.refilled[name] += 1
        else:
            self._place_tries[name] = 0
            self.consumed[name] += 1
            self.spent[name] += not teaches and plan.zero_variance == "refill"
        self._tries.pop((name, group.index), None)
        scores = [t.score.value for t in group.survivors if t.score and t.score.value is not None]
        plan.tasks.consume(group.index, scores)
        self._close((name, group.index))
        return not refilled

    def give_back(self, group: Group) -> None:
        """`group` can't be trained (too stale, too few survivors): its task keeps its turn and seed."""
        self._suites[group.suite].tasks.give_back(group.index)
        self._close((group.suite, group.index), owed=True)

    def advance(self, version: int) -> None:
        """Weights `version` are out: opens the next step and lets new groups in."""
        for plan in self._suites.values():
            plan.tasks.learn()
        self.concurrency.step(self._clock() - self._opened_s)
        self._opened_s = self._clock()
        self.plan = self._plan(version)
        self._holding = False
        self._look_again()
        self._stirred.set()

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
            "refilled": dict(self.refilled),
            "spent": dict(self.spent),
            "overdue": dict(self.overdue),
            "aborted": dict(self.aborted),
            "dropped": self.dropped,
            "tries": [[*ticket, count] for ticket, count in self._tries.items()],
            "failures": self.failures.state(),
        }

    def admitted_at(self, group: Group) -> int:
        """The version at which an open group was let in."""
        return self._ledger.born((group.suite, group.index))

    def mix_error(self) -> float:
        """max over suites of |share of consumed groups - share asked|."""
        return self._mixture.error(self.consumed)

    def statistics(self) -> dict[str, float]:
        """Open groups and the age of the oldest, for progress and for a stalled run's report."""
        now = self._clock()
        return {
            "groups_running": len(self._running),
            "groups_waiting": len(self._ledger) - len(self._running),
            "oldest_group_s": max((now - started for started in self._running.values()), default=0.0),
            "episodes_running": self._groups.running,
            "episodes_limit": self.concurrency.limit,
        }

    def suite_statistics(self, suite: str) -> dict[str, float]:
        """Counts of one suite since the run began, and its debt, concurrency and lead now."""
        share = self._mixture.shares[suite] * self._mixture.groups_per_step
        found = {
            "consumed": self.consumed[suite],
            "refilled": self.refilled[suite],
            "spent_places": self.spent[suite],
            "aborted": self.aborted[suite],
            "overdue": self.overdue[suite],
            "debt": self.plan.debt(suite),
            "concurrency": self._groups.members[suite],
            "concurrency_wanted": self.concurrency.wanted(suite, share),
            "lead_steps": self._lead(suite),
        }
        return {name: float(value) for name, value in found.items() if value == value}  # without what isn't measured

    def waiting_for(self) -> str:
        """What the current step waits for, in words."""
        missing = self.plan.missing
        return ", ".join(f"{count} group(s) of {name}" for name, count in missing.items()) or "the trainer"

    @property
    def dropped(self) -> dict[str, int]:
        """Suites that the run goes on without, and the first step without them."""
        return dict(self._mixture.dropped)

    @property
    def aborted(self) -> Mapping[str, int]:
        """By suite, members that were cancelled since their group was whole without them."""
        return self._groups.aborted

    # ---- admission ----
    def _plan(self, version: int) -> StepPlan:
        in_order = self._config.mode == "on_policy"
        plan = StepPlan(version, self._mixture, self.staleness_bound, self._ledger, self.consumed, in_order=in_order)
        self._patience.opened(plan)
        return plan

    def _next_suite(self) -> str | None:
        """The suite whose next group is due first, of those with room under the bound; or None."""
        self._full = self._is_crowded()
        if self._holding or self._full:
            return None
        due: dict[str, float] = {}
        for name in self._suites:
            ahead = self.consumed[name] + self._ledger.count(name)
            if name not in self._mixture.dropped and ahead < self._allowed(name) and not self._is_futile(name):
                due[name] = (ahead + 1) / self._mixture.shares[name]
        return min(due, key=lambda name: due[name]) if due else None

    def _is_futile(self, name: str) -> bool:
        """Whether steps go on without the suite, and what it starts ends too late; one group at a time is tried."""
        deadline_s = self._suites[name].deadline_s
        excused = self.plan.debt(name) > 0 and self._ledger.count(name) > 0
        return excused and self.concurrency.outlasts(name, self.staleness_bound, deadline_s)

    def _allowed(self, name: str) -> int:
        """Groups of a suite that may have been started by now, over the whole run."""
        horizon = self.plan.version + self._lead(name) + 1
        return self._mixture.total(name, horizon if self._steps is None else min(horizon, self._steps))

    def _closed_by(self) -> str:
        """What keeps the next group from starting."""
        if self._holding:
            return "drain"
        return "max_episodes" if self._is_crowded() else "max_staleness"

    def _is_crowded(self) -> bool:
        return self._groups.members.total() >= self.concurrency.limit

    def _lead(self, name: str) -> int:
        taken = max(1, self.consumed[name])
        return self.concurrency.lead(name, self.staleness_bound, 1 + self.refilled[name] / taken)

    def _admit(self, name: str) -> tuple[int, Task]:
        try:
            index, task = self._suites[name].tasks.take()
        except SuiteStarved as error:
            raise SuiteStarved(f"suite {name!r}: {error}; {self.failures.example(name)}") from error
        self._ledger.open((name, index), self.plan.version)
        self._running[name, index] = self._clock()
        return index, task

    def _close(self, ticket: Ticket, *, owed: bool = False) -> None:
        self._ledger.close(ticket, owed=owed)
        self._closed()
        self._look_again()
        self._stirred.set()

    def _freed(self) -> None:
        """A member is through: that is news to admission only where there were too many."""
        if self._full and not self._is_crowded():
            self._look_again()

    def _look_again(self) -> None:
        self._room.set()

    # ---- groups ----
    async def _group(self, name: str, index: int, task: Task, running: asyncio.TaskGroup) -> None:
        with span("group", suite=name, group=index):
            await self._whole_group(name, index, task, running)

    async def _whole_group(self, name: str, index: int, task: Task, running: asyncio.TaskGroup) -> None:
        plan, ticket = self._suites[name], (name, index)
        overdue = asyncio.get_running_loop().call_later(plan.deadline_s, self._pass_over, ticket)
        try:
            group = await self._groups.run(plan, index, task, self._tries.get(ticket, 0), running.create_task)
        finally:
            overdue.cancel()
        del self._jobs[ticket]
        self._settled.set()
        self.concurrency.group(name, self._clock() - self._running.pop(ticket))
        self._look_again()  # how far ahead the suite is started may have changed
        if len(group.survivors) >= min(plan.min_group, plan.group_size):
            self._patience.heard(name)
            context = Context(suite=name, env=plan.suite.env)
            plan.suite.hooks.notify("tunix_group_ready", ctx=context, group=group)
            with span("wait.queue_room"):
                await self._deliver(group)
        else:
            self._fail(group)

    def _timed(self, suite: str, seconds: float) -> None:
        self.concurrency.episode(suite, seconds)
        self.concurrency.look(self._clock(), self._groups.running)

    def _pass_over(self, ticket: Ticket) -> None:
        """A group is over its suite's deadline: steps go on without it."""
        if ticket not in self._ledger:
            return
        self.overdue[ticket[0]] += 1
        self._ledger.pass_over(ticket)
        self._closed()
        self._stirred.set()

    def _fail(self, group: Group) -> None:
        """Too few survivors: the task goes back for another turn, or is set aside for good."""
        ticket = (group.suite, group.index)
        self._tries[ticket] = self._tries.get(ticket, 0) + 1
        bad_gold = any(t.failure and t.failure.kind == "bad_gold" for t in group.trajectories)
        if bad_gold:
            self.failures.set_aside(group.suite, group.task.id)
        if bad_gold or self.failures.group(group.suite, group.task.id):
            del self._tries[ticket]
            self._suites[group.suite].tasks.skip(group.task.id)
            self._suites[group.suite].tasks.consume(group.index)
            self._close(ticket)
        else:
            self.give_back(group)

    # ---- patience ----
    async def _keep_patience(self) -> None:
        """Excuses late suites whenever one may be; raises SuiteStarved for one too far behind."""
        while True:
            self._stirred.clear()
            starved, wait_s = self._patience.look(self.plan)
            for name in starved:
                self._starved(name)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stirred.wait()

    def _starved(self, name: str) -> None:
        error = self._patience.error(name, self.failures.example(name))
        left = [suite for suite in self._suites if suite not in self._mixture.dropped]
        if self._config.on_starved == "end" or left == [name]:
            raise error
        log.warning("%s The run goes on without it.", error)
        self._mixture.drop(name, self.plan.version + 1)
        for ticket in [ticket for ticket in self._jobs if ticket[0] == name]:
            self._jobs.pop(ticket).cancel()
            del self._running[ticket]
            self._suites[name].tasks.give_back(ticket[1])
            self._ledger.close(ticket)
        if self.plan.full:
            self.plan.closed.set()
        self._look_again()

    def _restore(self, saved: Mapping[str, Any], waiting: Sequence[tuple[Group, int]]) -> None:
        def counts(name: str) -> Counter[str]:
            return Counter(dict.fromkeys(self._suites, 0) | dict(saved.get(name, {})))

        self.consumed, self.refilled, self.spent, self.overdue = map(
            counts, ("consumed", "refilled", "spent", "overdue")
        )
        self._groups.aborted.update(counts("aborted"))
        for name, step in saved.get("dropped", {}).items():
            self._mixture.drop(name, step)
        self._tries = {(suite, index): count for suite, index, count in saved.get("tries", ())}
        self.failures.restore(saved.get("failures", {}))
        for group, version in waiting:
            self._ledger.open((group.suite, group.index), version)
