"""A policy that knows nothing still says different things to each member, and the same things every time."""

from __future__ import annotations

import asyncio

import numpy as np

from tunix_core.config import EngineConfig, SuiteConfig
from tunix_core.contracts import RolloutRequest, Sampling
from tunix_core.engine import make_engine
from tunix_core.plugins import Hub
from tunix_core.rollout import run_episode
from tunix_core.run.build import connect, prepare
from tunix_core.run.policies import open_model
from tunix_core.types import SampleId, derive_seed
from tunix_core.weights import WeightStore

ENGINE = EngineConfig(slots=8, max_context=128, prefill_chunk=16, decode_steps=2)
SAMPLING = Sampling(max_tokens=20)


def play(orders):
    """Plays one lake for the members in each of `orders`, one order after the other: {member: rows}."""
    hub = Hub.load()
    policy = open_model("models/nano", hub, {"zero_output": True})
    bench = prepare(SuiteConfig(env="games/frozen-lake", name="lake"), hub)
    task = bench.tasks("train", 0).get(3)

    async def main():
        engine = make_engine(policy, WeightStore(0, policy.params), ENGINE, deterministic=True)
        await engine.start()
        suite = connect(bench, hub, engine, policy)
        found = []
        for order in orders:
            requests = [
                RolloutRequest(SampleId("lake", 0, i), task, derive_seed("env", 0, task.id), 0, SAMPLING, 2)
                for i in order
            ]
            played = await asyncio.gather(*(run_episode(request, suite) for request in requests))
            found.append({t.id.sample: next(t.rows()) for t in played})
        await suite.opener.aclose()
        await engine.aclose()
        return found

    return asyncio.run(main())


def test_members_differ_and_each_is_the_same_to_the_bit_wherever_and_whenever_it_runs():
    together, backwards, alone = play([range(8), [7, 5, 3], [3]])
    first = {tuple(row.tokens[row.mask > 0][:16]) for row in together.values()}
    assert len(first) == 8
    for again in (backwards, alone):  # another slot, another company, and with the prompt in the cache
        for member, row in again.items():
            for name in ("tokens", "mask", "logprobs", "versions"):
                assert np.array_equal(getattr(row, name), getattr(together[member], name)), (member, name)
    (elsewhere,) = play([[3]])  # another engine, nothing cached
    assert np.array_equal(elsewhere[3].logprobs, together[3].logprobs)
    assert np.array_equal(elsewhere[3].tokens, together[3].tokens)
