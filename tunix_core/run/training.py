"""Trains a policy: builds the rooms, connects them, and turns the one loop there is in the data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from shlex import quote
from typing import Any

import numpy as np

from tunix_core.config import RunConfig
from tunix_core.contracts import Context
from tunix_core.errors import CheckpointError, NoSignal
from tunix_core.plugins import Hub
from tunix_core.profiling import span
from tunix_core.reporting import Progress, RunDir, pipeline_summary, pipeline_table, read_rows, summary_table
from tunix_core.run.build import Bench, algorithms, connect, make_curriculum
from tunix_core.run.devices import adapters_of, arranged, layout_of, make_meshes, reference_of
from tunix_core.run.engines import fit, open_engine
from tunix_core.run.evaluation import engine_needs
from tunix_core.run.given_up import given_up
from tunix_core.run.held_out import HeldOut
from tunix_core.run.interrupt import Interrupt, Stopped
from tunix_core.run.loop import CalmCollector
from tunix_core.run.metrics import StepMetrics
from tunix_core.run.observing import observing, profiled
from tunix_core.run.outcome import RunResult, summary_of
from tunix_core.run.pipeline import Pipeline, Taken
from tunix_core.run.policies import open_model
from tunix_core.run.sandboxes import lock_images, make_sandboxes, start_sandboxes
from tunix_core.run.saved_groups import decode_groups, encode_groups
from tunix_core.run.stall import StallWatch
from tunix_core.run.trackers import Trackers
from tunix_core.run.trainer_thread import TrainerThread
from tunix_core.scheduler import Mixture, SuitePlan
from tunix_core.types import Group, Trajectory


class Training:
    """One run, from its parts to its summary."""

    def __init__(self, config: RunConfig, hub: Hub, benches: list[Bench]) -> None:
        from tunix_core.trainer import Trainer, drop

        self.config, self.hub = config, hub
        self.benches = {bench.config.name: bench for bench in benches}
        self.sources = {b.config.name: b.tasks(b.config.split, config.seed) for b in benches}
        self.curricula = {b.config.name: make_curriculum(b, self.sources[b.config.name], config, hub) for b in benches}
        self.meshes = make_meshes(config.mesh)
        policy = open_model(config.model, hub, config.model_options, mesh=self.meshes.loading)
        self.algorithms = algorithms(config, hub)
        self._absolute = {name for name, each in self.algorithms.items() if np.any(each.advantages(np.ones(2)))}
        self.adapters, reference = adapters_of(config, policy.model), reference_of(config, hub, self.meshes)
        if self.adapters is not None:
            policy = replace(policy, params=self.adapters.base(policy.params))
        self.sandboxes = make_sandboxes(config.sandbox, benches, hub)
        self.learner: Any = Trainer(
            policy.model,
            policy.params,
            self.algorithms,
            config.trainer,
            suites=config.suites,
            temperatures={suite.name: suite.sampling.temperature for suite in config.suites},
            reference=reference,
            adapters=self.adapters,
            layout=layout_of(self.meshes.trainer, policy.model),
            reference_layout=layout_of(self.meshes.reference, reference[0] if reference else policy.model),
            keep=(lambda *kept: self.run_dir.not_finite(*kept)) if self.meshes.leads else drop,
            steps=config.steps,
        )
        if self.meshes.leads:
            self.arrange = arranged(policy, self.adapters, layout_of(self.meshes.engine, policy.model))
        self.policy = replace(policy, params={})  # whoever needs the first weights has them
        self.on_policy = config.scheduler.mode == "on_policy"
        self.needs: dict[str, int] = {}  # bytes of a device's memory, by what for
        self.interrupt = Interrupt()
        self.silent_steps = 0
        self._saved_metrics: Mapping[str, float] = {}

    async def run(self, run_dir: RunDir, resume: bool) -> RunResult:
        """Opens the rooms, evaluates, trains, evaluates; closes everything whatever happens."""
        from tunix_core.trainer import Checkpoints

        self.run_dir = run_dir
        self.checkpoints = Checkpoints(run_dir.checkpoints, keep=self.config.checkpoint.keep)
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            self._trainer_thread = TrainerThread()
            stack.push_async_callback(self._trainer_thread.aclose)
            saved = await self._in_trainer(self._restore) if resume else {}
            first = self.learner.version
            folder = run_dir.path / "spans" if self.config.profiling.spans else None
            self.observed = stack.enter_context(observing(folder))
            self.stall = StallWatch(self.config.scheduler.stall_timeout_s, self.observed, self._rooms)
            await self._open(stack, saved)
            evaluated = time.monotonic()
            self._before = saved.get("before") or await self.held_out.now()
            eval_s = time.monotonic() - evaluated
            stopped = await self._train(stack, first)
            train_s = time.monotonic() - started - eval_s
            if stopped:
                config = quote(str(self.run_dir.path / "config.toml"))
                self.progress.say(f"Stopped. Go on with: tunix train {config} --resume")
                return RunResult(self.run_dir.path, {}, 130)
            evaluated = time.monotonic()
            after = await self.held_out.now()
            eval_s += time.monotonic() - evaluated
        return self._finish(after, train_s, eval_s)

    # ---- opening ----
    async def _open(self, stack: AsyncExitStack, saved: Mapping[str, Any]) -> None:
        from tunix_core.weights import WeightStore

        config = self.config
        version, params = await self._in_trainer(self.learner.weights)
        self.store = WeightStore(version, params, self.arrange)
        exact = self.on_policy if config.engine.deterministic is None else config.engine.deterministic
        made = {"deterministic": exact, "training": True, "mesh": self.meshes.engine}
        self.engine = open_engine(config.engine, self.policy, self.store, self.hub, **made)
        stack.push_async_callback(self.engine.aclose)
        if self.sandboxes is not None:
            stack.push_async_callback(self.sandboxes.aclose)
        rooms = (self.hub, self.engine, self.policy, self.run_dir.path, self.sandboxes)
        self.suites = {name: connect(bench, *rooms) for name, bench in self.benches.items()}
        for suite in self.suites.values():
            stack.push_async_callback(suite.opener.aclose)
            stack.push_async_callback(suite.scorer.aclose)
        first = replace(self.policy, params=self.store.latest().params)
        past = saved.get("evaluations", [])
        self.held_out = HeldOut(
            config,
            self.benches,
            self.suites,
            first,
            self.hub,
            past,
            self.meshes.engine,
        )
        self._open_pipeline(saved)
        self.trackers = Trackers(config.trackers, self.hub, self.run_dir.path)
        stack.callback(self.trackers.close)
        self.progress = Progress(config.steps, done=self.learner.version, waiting=self.scheduler.waiting_for)
        await self._say_memory()
        if self.sandboxes is not None:
            self.progress.say(await start_sandboxes(self.sandboxes, self.run_dir))
        memory, *_ = await asyncio.gather(
            self.held_out.open(stack), self.engine.start(), self._in_trainer(self.learner.warm_up)
        )
        if memory:
            self.progress.say(f"evaluation beside training: {memory / 2**20:,.0f} MiB for an engine of its own")

    async def _say_memory(self) -> None:
        """Tells what a step will need before the first compilation."""
        from tunix_core.trainer import device_bytes, memory_line

        policy, own = replace(self.policy, params=self.store.latest().params), self.learner.weights
        self.needs |= await self._in_trainer(self.learner.memory)
        self.needs |= engine_needs(policy, fit(self.config.engine, policy), (await self._in_trainer(own)).params)
        self.progress.say(memory_line(self.needs, device_bytes()))

    def _open_pipeline(self, saved: Mapping[str, Any]) -> None:
        config, waiting = self.config, decode_groups(saved.get("groups", ()))
        held = {name: [group.index for group, _ in waiting if group.suite == name] for name in self.suites}
        self.pipeline = Pipeline(
            {name: self._plan(name, saved, held[name]) for name in self.suites},
            Mixture({s.name: s.weight for s in config.suites}, config.trainer.groups_per_step),
            config.scheduler,
            seed=config.seed,
            teaches=self._teaches,
            interrupt=self.interrupt,
            waiting=waiting,
            observe=self._observe,
            engine=self.engine.statistics,
            slots=config.engine.slots,
            steps=config.steps,
            version=self.learner.version,
            saved=saved,
        )
        self.scheduler, self.queue = self.pipeline.scheduler, self.pipeline.queue

    def _plan(self, name: str, saved: Mapping[str, Any], held: Sequence[int]) -> SuitePlan:
        from tunix_core.tasks import TaskStream

        bench = self.benches[name]
        suite = bench.config
        tasks = TaskStream(self.sources[name], seed=self.config.seed, curriculum=self.curricula[name])
        if "tasks" in saved:
            tasks.restore(saved["tasks"][name], held)
        return SuitePlan(
            self.suites[name],
            tasks,
            suite.sampling,
            bench.max_turns,
            suite.group_size,
            min(suite.min_group, suite.group_size),
            suite.oversample,
            suite.zero_variance,
            suite.refill_limit,
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
        self._saved_metrics = extra.get("metrics", {})
        self.silent_steps = extra.get("silent_steps", 0)
        return extra

    # ---- training ----
    async def _train(self, stack: AsyncExitStack, first: int) -> bool:
        """Takes the steps; True when the user stopped it."""
        self.stall.progress()
        self.observed.restart()
        sampled = self.engine.statistics().get("tokens_sampled", 0.0)
        self.metrics = StepMetrics(self.suites, sampled, self._saved_metrics)
        self._remember()
        self.pipeline.start()
        stack.push_async_callback(self.pipeline.aclose)
        self.progress.say(f"run directory: {self.run_dir.path}")
        self._evaluate_beside()
        with self.progress, self.interrupt, CalmCollector():
            try:
                await self.stall.over(self._steps(first))
            except Stopped:
                await self._save()
                return True
        await self.pipeline.aclose()
        await self._save()
        return False

    async def _steps(self, first: int) -> None:
        for step in range(first, self.config.steps):
            async with profiled(self.run_dir.path / "jax", step == self.config.profiling.jax_step):
                await self._step(step)
            if (step + 1) % self.config.checkpoint.every_steps == 0:
                await self._save()

    async def _step(self, step: int) -> None:
        with self.metrics.waiting():
            taken = await self.pipeline.collect(self._take)
        if self.on_policy:  # in order of id, so that the sums are the same to the bit
            for group in sorted(taken.groups, key=lambda g: (g.suite, g.index)):
                await self._in_trainer(self.learner.accumulate, group)
        learned = await self._in_trainer(self.learner.apply)
        await self._publish()
        self.stall.progress()
        if step + 1 == self.config.steps:
            await self.held_out.settled()
        await self.metrics.groups(taken)
        self._report(step, taken, learned, await asyncio.to_thread(self.observed.row))

    async def _take(self, group: Group) -> None:
        self.stall.progress()
        if not self.on_policy:
            with self.metrics.working():
                await self._in_trainer(self.learner.accumulate, group)

    async def _publish(self) -> None:
        version, params = await self._in_trainer(self.learner.weights)
        turn = self.held_out.takes_turns and self.held_out.is_due(version)
        with span("weights.publish", version=version):
            if turn or self.config.scheduler.mode == "drain":
                await self.scheduler.drained()
            self.store.publish(version, params)
            self.hub.hooks.notify("tunix_weights_published", ctx=self._context(), version=version)
        if turn:
            with span("evaluation", version=version):
                await self.held_out.turn(version)
        self.scheduler.advance(version)
        self._remember()
        self._evaluate_beside()

    def _evaluate_beside(self) -> None:
        version, params = self.store.latest()
        if not self.held_out.takes_turns and self.held_out.is_due(version):
            self.held_out.begin(version, params)

    def _rooms(self) -> Mapping[str, Any]:
        """What each room says of itself, for the report of a stalled run."""
        return {
            f"step {self.learner.version} waits for": self.scheduler.waiting_for(),
            "scheduler": self.scheduler.statistics(),
            "queue": self.queue.statistics(),
            "engine": self.engine.statistics(),
            "sandboxes": self.sandboxes.statistics() if self.sandboxes else {},
            **{f"environments of {name}": suite.opener.statistics() for name, suite in self.suites.items()},
        }

    # ---- keeping track ----
    def _observe(self, trajectory: Trajectory) -> None:
        self.metrics.episode(trajectory)
        self.run_dir.trajectory(trajectory)

    def _report(self, step: int, taken: Taken, learned: Mapping[str, float], observed: Mapping[str, float]) -> None:
        row = self.metrics.row(step, learned, self.engine.statistics(), self.scheduler, observed)
        row |= self.held_out.row() | given_up(self.suites)
        self.run_dir.metrics(row)
        self.progress.step(row)
        self.trackers.log(step, row)
        self.hub.hooks.notify("tunix_train_step", ctx=self._context(), metrics=row)
        self.silent_steps = 0 if taken.taught else self.silent_steps + 1
        if self.silent_steps >= self.config.scheduler.no_signal_steps:
            raise NoSignal(
                f"{self.silent_steps} steps in a row, every group's samples scored the same, so nothing can be "
                f"learned. Look at {self.run_dir.path}/trajectories.jsonl: tasks too hard or too easy, a reward that "
                f"is constant, or a temperature too low."
            )

    def _teaches(self, group: Group) -> bool:
        """Whether something can be learned: scores differ, or the algorithm doesn't compare them."""
        return group.suite in self._absolute or group.has_signal

    def _remember(self) -> None:
        """What a checkpoint of the current weights must hold besides them."""
        self._boundary = self.pipeline.state() | {
            "before": self._before,
            "seed": self.config.seed,
            "metrics": self.metrics.state(),
            "silent_steps": self.silent_steps,
        }

    def _to_save(self) -> dict[str, Any]:
        groups = encode_groups(self._boundary["groups"])
        return self._boundary | {"groups": groups, "evaluations": self.held_out.taken}

    async def _save(self) -> None:
        if self.checkpoints.latest() != self.learner.version:
            state = await self._in_trainer(self.learner.state)
            save, extra = self.checkpoints.save, await self._in_trainer(self._to_save)
            try:
                path = await self._in_trainer(save, state.version, state.params, state.optimizer, extra)
            except OSError as error:
                where = f"{self.run_dir.path}: {error.strerror or error}"
                raise CheckpointError(f"no checkpoint can be saved in {where}. Make room, then --resume.") from error
            lock_images(self.sandboxes, self.run_dir)
            self.hub.hooks.notify("tunix_checkpoint_saved", ctx=self._context(), path=path)

    def _finish(self, after: Mapping[str, Any], train_s: float, eval_s: float) -> RunResult:
        summary = summary_of(self.scheduler, self._before, after) | {
            "train_s": train_s,
            "eval_s": eval_s,
            "steps": self.learner.version,
            "evaluated": {"before": self._before, "during": self.held_out.taken, "after": after},
            "pipeline": pipeline_summary(read_rows(self.run_dir.path)),
        }
        self.run_dir.write_json("summary.json", summary)
        if self.config.eval.n:
            self.progress.console.print(summary_table(summary))
        if summary["pipeline"]:
            self.progress.console.print(pipeline_table(summary["pipeline"]))
        env = next(iter(self.benches.values())).spec.id
        self.progress.say(_next_steps(str(self.run_dir.path), env, self.config.plugins.files))
        return RunResult(self.run_dir.path, summary)

    def _context(self) -> Context:
        return Context(run_dir=self.run_dir.path, step=self.learner.version)

    async def _in_trainer(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self._trainer_thread.call(self.learner.version, work, *arguments)


def _next_steps(path: str, env: str, plugins: Sequence[str]) -> str:
    """What can be done with a finished run: commands to copy, a line each."""
    run, files = quote(path), "".join(f" -p {quote(file)}" for file in plugins)
    commands = (f"eval {env} --model {run}{files}", f"export {run} DIR{files}", f"trace {run}")
    return "\n  tunix ".join(("Done. Go on with:", *commands))
