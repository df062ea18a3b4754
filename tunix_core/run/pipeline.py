"""The scheduler and the queue, joined: what a step trains on comes out of here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunix_core.config import SchedulerConfig
from tunix_core.run.interrupt import Interrupt, Stopped
from tunix_core.scheduler import Mixture, Scheduler, StepPlan, SuitePlan
from tunix_core.trajectory_queue import TrajectoryQueue
from tunix_core.types import Group

Take = Callable[[Group], Awaitable[None]]


@dataclass(slots=True)
class Taken:
    """The groups of one step: those that took a place, and those that carried no signal and were replaced.

    Attributes:
        taught: whether something can be learned from one of those that took a place.
    """

    groups: list[Group] = field(default_factory=list)
    refilled: list[Group] = field(default_factory=list)
    taught: bool = False


class Pipeline:
    """Produces groups while it is open, and gives each step those that are its.

    To be made on the event loop it runs on.

    Args:
        suites: by name.
        mixture: quotas per step.
        config: what runs when.
        seed: the run's.
        teaches: whether something can be learned from a group.
        interrupt: stops `collect`.
        waiting: groups that were finished when the run was saved, and the versions they were admitted at.
        more: Scheduler's `observe`, `engine`, `slots`, `steps`, `version` and `saved`.
    """

    def __init__(
        self,
        suites: Mapping[str, SuitePlan],
        mixture: Mixture,
        config: SchedulerConfig,
        *,
        seed: int,
        teaches: Callable[[Group], bool] = lambda group: group.has_signal,
        interrupt: Interrupt | None = None,
        waiting: Sequence[tuple[Group, int]] = (),
        **more: Any,
    ) -> None:
        self._teaches = teaches
        self._interrupt = interrupt or Interrupt()
        bound = 0 if config.mode == "on_policy" else config.max_staleness
        # No finished group waits to be let in: a suite has no more open than the steps within the bound and its
        # debt hold.
        self.queue = TrajectoryQueue(
            mixture.groups_per_step * (bound + 1 + config.max_debt_steps),
            bound,
            min_group={name: min(plan.min_group, plan.group_size) for name, plan in suites.items()},
            waiting=[group for group, _ in waiting],
        )
        self.scheduler = Scheduler(
            suites,
            mixture,
            config,
            seed=seed,
            deliver=self.queue.put,
            closed=self.queue.look_again,
            waiting=waiting,
            **more,
        )
        self.producing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to produce."""
        self.producing = asyncio.create_task(self.scheduler.run(), name="scheduler")

    async def aclose(self) -> None:
        """Stops producing; what is in flight is cancelled and closed."""
        if self.producing is not None:
            await cancel(self.producing)

    async def collect(self, take: Take) -> Taken:
        """All groups of the current step; `take` gets each one that is to be trained, as it comes.

        Raises:
            Stopped: the user asked to stop.
            RunEnded: what ends the run, from the scheduler.
        """
        plan, taken = self.scheduler.plan, Taken()
        while not plan.full:
            group = await self.next_group(plan)
            if group is None:
                continue
            teaches = self._teaches(group)
            if self.scheduler.consume(group, teaches):
                taken.taught |= teaches
                taken.groups.append(group)
                await take(group)
            else:
                taken.refilled.append(group)
        return taken

    async def next_group(self, plan: StepPlan) -> Group | None:
        """The next finished group that the step has a place for; None once the step is closed without one."""
        self._check_going_on()
        group = self.queue.take(plan.accepts, plan.version, self.scheduler.give_back)
        return group if group is not None or plan.full else await self._waited_for(plan)

    def state(self) -> dict[str, Any]:
        """What a run saved now must hold, at a step's boundary: the scheduler's state, and under "groups" the
        finished groups with the versions they were admitted at."""
        waiting = [(group, self.scheduler.admitted_at(group)) for group in self.queue.waiting()]
        return self.scheduler.state() | {"groups": waiting}

    async def _waited_for(self, plan: StepPlan) -> Group | None:
        assert self.producing is not None
        getting = asyncio.create_task(
            self.queue.get(plan.accepts, plan.version, self.scheduler.give_back, plan.barrier)
        )
        others = [asyncio.create_task(plan.closed.wait()), asyncio.create_task(self._interrupt.wait())]
        try:
            await asyncio.wait({getting, self.producing, *others}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            self._check_going_on()
            return None
        finally:
            for task in (getting, *others):
                await cancel(task)

    def _check_going_on(self) -> None:
        if self.producing is not None and self.producing.done():
            _raise(self.producing)
        if self._interrupt.asked:
            raise Stopped


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end; what it raised has been reported, or does not matter now."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


def _raise(task: asyncio.Task[Any]) -> None:
    """Raises the first real error of a finished task, out of any group of errors."""
    error: BaseException | None = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
