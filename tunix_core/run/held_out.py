"""Greedy scores on held-out tasks: before, during and after training.

During training they are taken beside it, on an engine of its own that keeps the parameters of one
version, or in turns with it, on the engine that trains.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from tunix_core.config import RunConfig
from tunix_core.contracts import Engine, Params, Policy
from tunix_core.plugins import Hub
from tunix_core.reporting import summarise
from tunix_core.rollout import Suite
from tunix_core.run.build import QUIET, Bench, greedy
from tunix_core.run.engines import fit, open_engine
from tunix_core.run.evaluation import engine_bytes, play
from tunix_core.run.pipeline import cancel

log = logging.getLogger(__name__)
Scores = dict[str, Any]  # by suite: what `summarise` gives


class HeldOut:
    """Evaluates one run's suites.

    Args:
        suites: connected to the engine that trains.
        past: evaluations during training that a resumed run has behind it.
        mesh: of the engine that trains; the second engine is on the same devices.

    Attributes:
        taken: evaluations during training so far: {"version", "suites": {name: summary}}.
        skipped: those that were due while the one before still ran.
    """

    def __init__(
        self,
        config: RunConfig,
        benches: Mapping[str, Bench],
        suites: Mapping[str, Suite],
        policy: Policy,
        hub: Hub,
        past: list[dict[str, Any]],
        mesh: Any = None,
    ) -> None:
        self._config, self._benches, self._suites = config, benches, suites
        self._policy, self._hub, self._mesh = policy, hub, mesh
        self.taken, self.skipped = list(past), 0
        self._told = len(past)
        self._engine: Engine | None = None
        self._running: asyncio.Task[Scores] | None = None
        self.waited_s = 0.0

    async def open(self, stack: AsyncExitStack) -> int:
        """Starts the second engine where one is asked for; gives the bytes of memory it takes, or 0."""
        from tunix_core.weights import WeightStore

        policy, self._policy = self._policy, replace(self._policy, params={})  # the first weights may go
        if not self._config.eval.every_steps or self._config.eval.mode != "beside":
            return 0
        sizes = replace(fit(self._config.engine, policy), slots=self._config.eval.slots, workers=1)
        self._store = WeightStore(0, policy.params)
        engine = open_engine(sizes, policy, self._store, self._hub, deterministic=True, training=False, mesh=self._mesh)
        self._engine = engine
        stack.push_async_callback(engine.aclose)
        stack.push_async_callback(self.aclose)
        await engine.start()
        return engine_bytes(policy, sizes)

    def is_due(self, version: int) -> bool:
        """Whether this version is to be evaluated during training; the last one is evaluated after it."""
        every = self._config.eval.every_steps
        known = any(entry["version"] == version for entry in self.taken)
        return bool(every) and 0 < version < self._config.steps and version % every == 0 and not known

    @property
    def takes_turns(self) -> bool:
        """Whether training waits for an evaluation during it."""
        return self._config.eval.mode == "turns"

    async def now(self) -> Scores:
        """Summaries by suite with the weights the training engine has; {} when the config asks for none."""
        return await self._play(self._suites) if self._config.eval.n else {}

    async def turn(self, version: int) -> None:
        """Evaluates on the engine that trains; nothing else may run on it."""
        started = time.monotonic()
        self.taken.append({"version": version, "suites": await self.now()})
        self.waited_s += time.monotonic() - started

    def begin(self, version: int, params: Params) -> None:
        """Evaluates `params` beside training, unless the evaluation before still runs: then this one is left out."""
        if self._running is not None:
            self.skipped += 1
            log.warning("version %d isn't evaluated: the one before still is; see eval.every_steps", version)
            return
        assert self._engine is not None
        self._store.publish(version, params)
        suites = {name: replace(suite, engine=self._engine) for name, suite in self._suites.items()}
        self._running = asyncio.create_task(self._play(suites), name="evaluation")
        self._version = version

    async def settled(self) -> None:
        """Waits for the evaluation beside training, if one runs."""
        if self._running is not None:
            await asyncio.wait({self._running})

    def row(self) -> dict[str, float]:
        """What has become known since the last call, for the metrics; raises what an evaluation raised."""
        if self._running is not None and self._running.done():
            finished, self._running = self._running, None
            self.taken.append({"version": self._version, "suites": finished.result()})
        row = {"wait_eval_s": self.waited_s} if self.waited_s else {}
        self.waited_s = 0.0
        if self.skipped:
            row["eval/skipped"] = float(self.skipped)
        for entry in self.taken[self._told :]:
            row["eval/version"] = float(entry["version"])
            row |= {
                f"eval/{name}/{key}": float(summary[key])
                for name, summary in entry["suites"].items()
                for key in ("n", "mean", "stderr", "none")
                if summary.get(key) is not None
            }
        self._told = len(self.taken)
        return row

    async def aclose(self) -> None:
        """Ends the evaluation that still runs."""
        if self._running is not None:
            await cancel(self._running)

    async def _play(self, suites: Mapping[str, Suite]) -> Scores:
        found: Scores = {}
        for name, bench in self._benches.items():
            source, seed = bench.tasks("eval", self._config.eval.seed), self._config.eval.seed
            suite, sampling = replace(suites[name], hooks=QUIET), greedy(bench.config.sampling)
            played = await play(suite, source, self._config.eval.n, sampling, bench.max_turns, seed)
            found[name] = summarise(played)
        return found
