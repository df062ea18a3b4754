"""Two synchronous ways to roll out the same episodes with the same engine, for `vs_sync`.

A barrier a turn: all environments step, then all conversations are sampled, then all environments step.
A barrier a batch: episodes run side by side, and the next batch starts when the last of this one ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline_rig import ENV

from tunix_core.config import RunConfig
from tunix_core.contracts import EnvHandle, EnvOpener, RolloutRequest
from tunix_core.plugins import Hub
from tunix_core.rollout import Suite, run_episode
from tunix_core.run.build import connect, prepare
from tunix_core.run.engines import open_engine
from tunix_core.run.loop import run_on_loop
from tunix_core.run.policies import open_model
from tunix_core.types import Message, Opening, SampleId, StepResult, Task
from tunix_core.weights import WeightStore


@dataclass(frozen=True)
class _Together(EnvHandle):
    """An environment each of whose calls begins and ends with all the others'."""

    inner: EnvHandle
    barrier: asyncio.Barrier
    sandbox: None = None

    async def reset(self, seed: int) -> Opening:
        opening = await self.inner.reset(seed)
        await self.barrier.wait()
        return opening

    async def step(self, action: Message) -> StepResult:
        await self.barrier.wait()
        result = await self.inner.step(action)
        await self.barrier.wait()
        return result

    async def close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True)
class _TogetherOpener(EnvOpener):
    inner: EnvOpener
    barrier: asyncio.Barrier

    async def open(self, task: Task) -> EnvHandle:
        return _Together(await self.inner.open(task), self.barrier)

    async def aclose(self) -> None:
        await self.inner.aclose()

    def statistics(self) -> Mapping[str, float]:
        return self.inner.statistics()


def synchronous(config: RunConfig, batch: int, batches: int, *, every_turn: bool) -> float:
    """Episodes a second of `batches` batches, after one that is not counted."""
    return run_on_loop(_synchronous(config, batch, batches, every_turn))


async def _synchronous(config: RunConfig, batch: int, batches: int, every_turn: bool) -> float:
    hub = Hub.load(files=[ENV])
    bench, policy = prepare(config.suites[0], hub), open_model(config.model, hub, config.model_options)
    weights = WeightStore(0, policy.params)
    engine = open_engine(config.engine, policy, weights, hub, deterministic=False, training=True)
    suite = connect(bench, hub, engine, policy)
    if every_turn:
        suite = replace(suite, opener=_TogetherOpener(suite.opener, asyncio.Barrier(batch)))
    try:
        await engine.start()
        await _batch(suite, bench, batch, 0)
        started = time.perf_counter()
        for number in range(1, batches + 1):
            await _batch(suite, bench, batch, number)
        return batch * batches / (time.perf_counter() - started)
    finally:
        await suite.opener.aclose()
        await suite.scorer.aclose()
        await engine.aclose()


async def _batch(suite: Suite, bench: Any, size: int, number: int) -> None:
    source = bench.tasks("train", 0)
    requests = [
        RolloutRequest(
            SampleId(suite.name, number * size + index, 0), source.get(index), 0, 0, bench.config.sampling, 3
        )
        for index in range(size)
    ]
    await asyncio.gather(*(run_episode(request, suite) for request in requests))
