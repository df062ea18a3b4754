"""Trains a policy: builds the rooms, connects them, and turns the one loop there is in the data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tunix_core.config import RunConfig, dump_config
from tunix_core.contracts import Context
from tunix_core.errors import CheckpointError, NoSignal, Stalled
from tunix_core.plugins import Hub
from tunix_core.reporting import Progress, RunDir, summarise, summary_table
from tunix_core.run.build import QUIET, Bench, algorithms, connect, greedy, prepare
from tunix_core.run.evaluation import fit, play
from tunix_core.run.interrupt import Interrupt, Stopped
from tunix_core.run.lock import check_lock, make_lock
from tunix_core.run.metrics import StepMetrics
from tunix_core.run.policies import open_model
from tunix_core.run.sandboxes import make_sandboxes
from tunix_core.run.trackers import Trackers
from tunix_core.scheduler import Mixture, Scheduler, StepPlan, SuitePlan
from tunix_core.types import Group, Trajectory


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        summary: what summary.json holds.
        exit_code: 0 when it ended by itself, 130 when it was interrupted.
    """

    run_dir: Path
    summary: Mapping[str, Any]
    exit_code: int = 0


def train(
    config: RunConfig, *, hub: Hub, resume: bool = False, overwrite: bool = False, config_name: str = ""
) -> RunResult:
    """Trains as `config` says, in its run directory.

    Raises:
        UsageError: something in the config does not fit what is installed.
        RunEnded: the run stopped itself; the message says why.
    """
    benches = [prepare(suite, hub) for suite in config.suites]
    config = replace(config, run_dir=config.run_dir or _default_dir(config_name))
    lock = make_lock(config, benches, hub)
    training = Training(config, hub, benches)  # what can't be built is told before anything is written
    with RunDir(Path(config.run_dir), resume=resume, overwrite=overwrite) as run_dir:
        if resume:
            check_lock(run_dir.read_json("lock.json"), lock)
        else:
            run_dir.write_text("config.toml", dump_config(config))
            run_dir.write_json("lock.json", lock)
        return asyncio.run(training.run(run_dir, resume))


def _default_dir(name: str) -> str:
    return f"runs/{name or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"


class Training:
    """One run, from its parts to its summary."""

    def __init__(self, config: RunConfig, hub: Hub, benches: list[Bench]) -> None:
        from tunix_core.trainer import Trainer

        self.config, self.hub = config, hub
        self.benches = {bench.config.name: bench for bench in benches}
        self.sources = {b.config.name: b.tasks(b.config.split, config.seed) for b in benches}
        self.policy = open_model(config.model, hub, config.model_options)
        self.algorithms = algorithms(config, hub)
        self.sandboxes = make_sandboxes(config.sandbox, benches, hub)
        self.learner = Trainer(
            self.policy.model,
            self.policy.params,
            self.algorithms,
            config.trainer,
            suites=config.suites,
            temperatures={suite.name: suite.sampling.temperature for suite in config.suites},
            reference=self._reference(),
            steps=config.steps,
        )
        self.on_policy = config.scheduler.mode == "on_policy"
        self.interrupt = Interrupt()
        self.metrics = StepMetrics()
        self.idle_since = time.monotonic()
        self.silent_steps = 0
        self._trainer_thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")

    async def run(self, run_dir: RunDir, resume: bool) -> RunResult:
        """Opens the rooms, evaluates, trains, evaluates; closes everything whatever happens."""
        from tunix_core.trainer import Checkpoints

        self.run_dir = run_dir
        self.checkpoints = Checkpoints(run_dir.checkpoints, keep=self.config.checkpoint.keep)
        started = time.monotonic()
        saved = await self._in_trainer(self._restore) if resume else {}
        first = self.learner.version
        async with AsyncExitStack() as stack:
            stack.callback(self._trainer_thread.shutdown)
            await self._open(stack, saved)
            evaluated = time.monotonic()
            before = saved.get("before") or await self._evaluate()
            eval_s = time.monotonic() - evaluated
            self._before = before
            stopped = await self._train(stack, first)
            train_s = time.monotonic() - started - eval_s
            if stopped:
                self.progress.say(f"Stopped. Go on with: tunix train {self.run_dir.path}/config.toml --resume")
                return RunResult(self.run_dir.path, {}, 130)
            evaluated = time.monotonic()
            after = await self._evaluate()
            eval_s += time.monotonic() - evaluated
        return self._finish(before, after, train_s, eval_s)

    # ---- opening ----
    def _reference(self) -> tuple[Any, Any] | None:
        """The model that `trainer.reference` names, with its weights."""
        if not self.config.trainer.reference:
            return None
        policy = open_model(self.config.trainer.reference, self.hub, {})
        return policy.model, policy.params

    async def _open(self, stack: AsyncExitStack, saved: Mapping[str, Any]) -> None:
        from tunix_core.engine import make_engine
        from tunix_core.trajectory_queue import TrajectoryQueue
        from tunix_core.weights import WeightStore

        config = self.config
        self.store = WeightStore(*self.learner.weights())
        exact = self.on_policy if config.engine.deterministic is None else config.engine.deterministic
        self.engine = make_engine(self.policy, self.store, fit(config.engine, self.policy), deterministic=exact)
        stack.push_async_callback(self.engine.aclose)
        if self.sandboxes is not None:
            stack.push_async_callback(self.sandboxes.aclose)
        rooms = (self.hub, self.engine, self.policy, self.run_dir.path, self.sandboxes)
        self.suites = {name: connect(bench, *rooms) for name, bench in self.benches.items()}
        for suite in self.suites.values():
            stack.push_async_callback(suite.opener.aclose)
            stack.push_async_callback(suite.scorer.aclose)
        mixture = Mixture({s.name: s.weight for s in config.suites}, config.trainer.groups_per_step)
        bound = 0 if self.on_policy else config.scheduler.max_staleness
        least = {s.name: min(s.min_group, s.group_size) for s in config.suites}
        self.queue = TrajectoryQueue(mixture.groups_per_step * (bound + 1), bound, min_group=least)
        self.scheduler = Scheduler(
            {name: self._plan(name, saved) for name in self.suites},
            mixture,
            config.scheduler,
            seed=config.seed,
            deliver=self.queue.put,
            observe=self._observe,
            closed=self.queue.look_again,
            version=self.learner.version,
            consumed=saved.get("consumed", {}),
        )
        self.trackers = Trackers(config.trackers, self.hub, self.run_dir.path)
        stack.callback(self.trackers.close)
        self.progress = Progress(config.steps, done=self.learner.version, waiting=self.scheduler.waiting_for)
        if self.sandboxes is not None:
            self.progress.say(await self.sandboxes.start())
        await asyncio.gather(self.engine.start(), self._in_trainer(self.learner.warm_up))

    def _plan(self, name: str, saved: Mapping[str, Any]) -> SuitePlan:
        from tunix_core.tasks import TaskStream

        bench = self.benches[name]
        tasks = TaskStream(self.sources[name], seed=self.config.seed)
        if "tasks" in saved:
            tasks.restore(saved["tasks"][name])
        size = bench.config.group_size
        return SuitePlan(
            self.suites[name], tasks, bench.config.sampling, bench.max_turns, size, min(bench.config.min_group, size)
        )

    def _restore(self) -> Mapping[str, Any]:
        from tunix_core.trainer import TrainerState

        step = self.checkpoints.latest()
        if step is None:
            raise CheckpointError(f"{self.run_dir.path} has no checkpoint yet; start it anew with --overwrite.")
        state = self.learner.state()
        params, optimizer, extra = self.checkpoints.restore(step, state.params, state.optimizer)
        self.learner.restore(TrainerState(params, optimizer, step))
        self.run_dir.cut_metrics(step)
        return extra

    # ---- training ----
    async def _train(self, stack: AsyncExitStack, first: int) -> bool:
        """Takes the steps; True when the user stopped it."""
        self._remember()
        producing = asyncio.create_task(self.scheduler.run(), name="scheduler")
        stack.push_async_callback(_cancel, producing)
        self.progress.say(f"run directory: {self.run_dir.path}")
        with self.progress, self.interrupt:
            try:
                for step in range(first, self.config.steps):
                    await self._step(step, producing)
                    if (step + 1) % self.config.checkpoint.every_steps == 0:
                        await self._save()
            except Stopped:
                await self._save()
                return True
        await _cancel(producing)
        await self._save()
        return False

    async def _step(self, step: int, producing: asyncio.Task[None]) -> None:
        plan, groups = self.scheduler.plan, []
        while not plan.full:
            with self.metrics.waiting():
                group = await self._next_group(plan, producing)
            self.scheduler.consume(group)
            groups.append(group)
            if not self.on_policy:
                await self._in_trainer(self.learner.accumulate, group)
        if self.on_policy:  # in order of id, so that the sums are the same to the bit
            for group in sorted(groups, key=lambda g: (g.suite, g.index)):
                await self._in_trainer(self.learner.accumulate, group)
        learned = await self._in_trainer(self.learner.apply)
        await self._publish()
        self._report(step, groups, learned)

    async def _publish(self) -> None:
        if self.config.scheduler.mode == "drain":
            await self.scheduler.drained()
        version, params = self.learner.weights()
        self.store.publish(version, params)
        self.hub.hooks.notify("tunix_weights_published", ctx=self._context(), version=version)
        self.scheduler.advance(version)
        self._remember()

    async def _next_group(self, plan: StepPlan, producing: asyncio.Task[None]) -> Group:
        """The next finished group that the step has a place for.

        Raises:
            Stopped: the user asked to stop.
            Stalled: nothing finished for stall_timeout_s.
        """
        getting = asyncio.create_task(self.queue.get(plan.accepts, plan.version, self.scheduler.give_back))
        stopping = asyncio.create_task(self.interrupt.wait())
        try:
            while not getting.done():
                await asyncio.wait({getting, stopping, producing}, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
                if producing.done():
                    _raise(producing)
                if stopping.done():
                    raise Stopped
                self._check_stalled()
            self.idle_since = time.monotonic()
            return getting.result()
        finally:
            await _cancel(getting)
            await _cancel(stopping)

    def _check_stalled(self) -> None:
        idle = time.monotonic() - self.idle_since
        if idle > self.config.scheduler.stall_timeout_s:
            state = {
                "waiting for": self.scheduler.waiting_for(),
                "scheduler": self.scheduler.statistics(),
                "queue": self.queue.statistics(),
                "engine": self.engine.statistics(),
                "sandboxes": self.sandboxes.statistics() if self.sandboxes else {},
                "environments": {name: suite.opener.statistics() for name, suite in self.suites.items()},
            }
            rooms = "\n".join(f"  {room}: {value}" for room, value in state.items())
            raise Stalled(f"no episode finished for {idle:.0f} s (scheduler.stall_timeout_s).\n{rooms}")

    # ---- keeping track ----
    def _observe(self, trajectory: Trajectory) -> None:
        self.idle_since = time.monotonic()
        self.metrics.episode(trajectory)
        self.run_dir.trajectory(trajectory)

    def _report(self, step: int, groups: list[Group], learned: Mapping[str, float]) -> None:
        row = self.metrics.row(step, groups, learned, self.engine.statistics(), self.scheduler)
        self.run_dir.metrics(row)
        self.progress.step(row)
        self.trackers.log(step, row)
        self.hub.hooks.notify("tunix_train_step", ctx=self._context(), metrics=row)
        self.silent_steps = 0 if any(map(self._teaches, groups)) else self.silent_steps + 1
        if self.silent_steps >= self.config.scheduler.no_signal_steps:
            raise NoSignal(
                f"{self.silent_steps} steps in a row, every group's samples scored the same, so nothing can be "
                f"learned. Look at {self.run_dir.path}/trajectories.jsonl: tasks too hard or too easy, a reward that "
                f"is constant, or a temperature too low."
            )

    def _teaches(self, group: Group) -> bool:
        """Whether something can be learned: scores differ, or the algorithm doesn't compare them."""
        return group.has_signal or bool(np.any(self.algorithms[group.suite].advantages(np.ones(2))))

    def _remember(self) -> None:
        """What a checkpoint of the current weights must hold besides them."""
        self._boundary = self.scheduler.state() | {"before": self._before, "seed": self.config.seed}

    async def _save(self) -> None:
        if self.checkpoints.latest() != self.learner.version:
            state = self.learner.state()
            save = self.checkpoints.save
            try:
                path = await self._in_trainer(save, state.version, state.params, state.optimizer, self._boundary)
            except OSError as error:
                where = f"{self.run_dir.path}: {error.strerror or error}"
                raise CheckpointError(f"no checkpoint can be saved in {where}. Make room, then --resume.") from error
            self.hub.hooks.notify("tunix_checkpoint_saved", ctx=self._context(), path=path)

    async def _evaluate(self) -> dict[str, Any]:
        """Greedy summaries per suite on held-out tasks; {} when the config asks for none."""
        found: dict[str, Any] = {}
        if self.config.eval.n:
            for name, bench in self.benches.items():
                suite = replace(self.suites[name], hooks=QUIET)
                source = bench.tasks("eval", self.config.eval.seed)
                sampling = greedy(bench.config.sampling)
                turns, seed = bench.max_turns, self.config.eval.seed
                found[name] = summarise(await play(suite, source, self.config.eval.n, sampling, turns, seed))
        return found

    def _finish(self, before: Mapping[str, Any], after: Mapping[str, Any], train_s: float, eval_s: float) -> RunResult:
        consumed = self.scheduler.consumed
        total = max(1, sum(consumed.values()))
        suites = {
            name: {
                "before": before.get(name, {}).get("mean"),
                "after": after.get(name, {}).get("mean"),
                "trained_share": consumed[name] / total,
            }
            for name in self.suites
        }
        summary = {
            "suites": suites,
            "mean_before": _mean([row["before"] for row in suites.values()]),
            "mean_after": _mean([row["after"] for row in suites.values()]),
            "train_s": train_s,
            "eval_s": eval_s,
            "steps": self.learner.version,
            "mix_error": self.scheduler.mix_error(),
            "quarantined": dict(self.scheduler.failures.quarantined),
            "failures": {name: dict(kinds) for name, kinds in self.scheduler.failures.counts.items()},
            "evaluated": {"before": before, "after": after},
        }
        self.run_dir.write_json("summary.json", summary)
        if self.config.eval.n:
            self.progress.console.print(summary_table(summary))
        return RunResult(self.run_dir.path, summary)

    def _context(self) -> Context:
        return Context(run_dir=self.run_dir.path, step=self.learner.version)

    async def _in_trainer(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._trainer_thread, work, *arguments)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


async def _cancel(task: asyncio.Task[Any]) -> None:
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
