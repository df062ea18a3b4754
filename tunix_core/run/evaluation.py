"""Scores a policy on a suite's tasks, with the episodes that training runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tunix_core.config import EngineConfig, SandboxConfig, SuiteConfig
from tunix_core.contracts import Params, Policy, RolloutRequest, Sampling, Sandboxes, TaskSource
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.rollout import Suite, run_episode
from tunix_core.run.build import Bench, connect, prepare
from tunix_core.run.engines import open_engine
from tunix_core.run.policies import open_model
from tunix_core.run.sandboxes import make_sandboxes
from tunix_core.types import SampleId, Task, Trajectory, derive_seed

CONCURRENT = 128


def evaluate(
    env: str,
    *,
    hub: Hub,
    model: str = "models/nano",
    n: int = 100,
    seed: int = 0,
    temperature: float = 0.0,
    split: str = "eval",
    options: Mapping[str, Any] | None = None,
    rewards: Sequence[Any] = (),
    max_tokens: int = 64,
    engine: EngineConfig | None = None,
    sandbox: SandboxConfig | None = None,
) -> dict[str, Any]:
    """Runs `n` tasks of an environment and summarises their scores.

    Args:
        env: the environment's id.
        model: as `open_model` takes it.
        temperature: 0 is greedy.
        sandbox: where an environment that needs one runs what it does not trust.

    Returns:
        {"env", "model", "asked", "n" (fewer than asked where there are fewer),
        "mean", "stderr", "none", "parts", "statuses", "failures", …}; see
        `reporting.summarise`.

    Raises:
        UsageError: an unknown id or option, or n < 1.
    """
    if n < 1:
        raise UsageError(f"n must be at least 1, got {n}.")
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    config = SuiteConfig(env=env, name=env, split=split, sampling=sampling, options=dict(options or {}))  # type: ignore[arg-type]
    if rewards:
        from dataclasses import replace

        config = replace(config, rewards=tuple(rewards))
    bench = prepare(config, hub)
    policy = open_model(model, hub)
    sandboxes = make_sandboxes(sandbox or SandboxConfig(), [bench], hub)
    summary = asyncio.run(_evaluate(bench, policy, hub, engine or EngineConfig(), n, seed, sandboxes))
    return {"env": env, "model": model, "split": split, "temperature": temperature, "seed": seed, "asked": n} | summary


async def _evaluate(
    bench: Bench, policy: Policy, hub: Hub, config: EngineConfig, n: int, seed: int, sandboxes: Sandboxes | None
) -> dict[str, Any]:
    from tunix_core.reporting import summarise
    from tunix_core.weights import WeightStore

    source = bench.tasks(bench.config.split, seed)
    weights = WeightStore(0, policy.params)
    engine = open_engine(config, policy, weights, hub, deterministic=True, training=False)
    suite = connect(bench, hub, engine, policy, sandboxes=sandboxes)
    try:
        if sandboxes is not None:
            print(await sandboxes.start(), file=sys.stderr)
        await engine.start()
        return summarise(await play(suite, source, n, bench.config.sampling, bench.max_turns, seed))
    finally:
        await suite.opener.aclose()
        await suite.scorer.aclose()
        await engine.aclose()
        if sandboxes is not None:
            await sandboxes.aclose()


async def play(
    suite: Suite, source: TaskSource, n: int, sampling: Sampling, max_turns: int, seed: int
) -> list[Trajectory]:
    """Runs the first `n` tasks of a source once each; all of them when there are fewer."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(index: int, task: Task) -> Trajectory:
        request = RolloutRequest(
            id=SampleId(suite.name, index, 0),
            task=task,
            seed=derive_seed("env", seed, suite.name, task.id),
            run_seed=seed,
            sampling=sampling,
            max_turns=max_turns,
        )
        async with gate:
            return await run_episode(request, suite)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(i, source.get(i))) for i in range(_count(source, n))]
    return [task.result() for task in tasks]


def _count(source: TaskSource, n: int) -> int:
    from tunix_core.tasks import length_of

    length = length_of(source)
    return n if length is None else min(n, length)


def engine_bytes(policy: Policy, config: EngineConfig) -> int:
    """Bytes of memory that an engine of one's own takes: a version's parameters, and its caches."""
    return sum(engine_needs(policy, config, None).values())


def engine_needs(policy: Policy, config: EngineConfig, shared: Params) -> dict[str, int]:
    """Bytes for an engine's parameters and caches, by name; parameters in the memory of `shared` cost nothing."""
    import jax

    from tunix_core.engine.engine import sizes_of

    sizes = sizes_of(config, policy.model.max_positions, deterministic=True)
    caches = jax.eval_shape(
        lambda: (
            policy.model.init_cache(config.workers * sizes.slots, sizes.length),
            policy.model.init_cache(config.workers * sizes.blocks, sizes.chunk),
        )
    )
    own = {_buffer(leaf) for leaf in jax.tree.leaves(shared)}
    apart = [leaf for leaf in jax.tree.leaves(policy.params) if not own or _buffer(leaf) not in own]
    parts = {"the engine's parameters": apart, "the engine's cache": jax.tree.leaves(caches)}
    return {name: sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) for name, leaves in parts.items()}


def _buffer(array: Any) -> int:
    return array.addressable_shards[0].data.unsafe_buffer_pointer()
