"""The fake engine keeps the contract of an engine; the fake chat format that of a chat format."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tunix_core.contracts import Completion, Engine, GenerateRequest, Sampling
from tunix_core.errors import EngineError, ModelError
from tunix_core.testing import clock
from tunix_core.testing.engine import FakeEngine, FixedWeights


def request(prompt: int = 3, *, seed: int = 1, max_tokens: int = 16, **fields: Any) -> GenerateRequest:
    return GenerateRequest(np.arange(prompt, dtype=np.int32), Sampling(), seed, max_tokens, **fields)


def ask(engine: FakeEngine, *requests: GenerateRequest) -> list[Completion]:
    async def main() -> list[Completion]:
        return list(await asyncio.gather(*(engine.generate(one) for one in requests)))

    return clock.run(main())


def test_a_completion_has_the_shapes_and_types_of_the_contract() -> None:
    engine: Engine = FakeEngine(lambda r: [int(r.prompt[-1]), 9])
    (said,) = ask(engine, request(stop_tokens=(7, 8)))  # type: ignore[arg-type]
    assert said.tokens.tolist() == [2, 9, 7] and said.finish_reason == "stop"
    assert (said.tokens.dtype, said.versions.dtype, said.logprobs.dtype) == (np.int32, np.int32, np.float32)
    assert said.logprobs.shape == said.full_logprobs.shape == said.versions.shape == (3,)
    assert (said.logprobs <= 0).all()


def test_logprobs_follow_the_seed_alone() -> None:
    engine = FakeEngine(lambda _: [1, 2, 3])
    first, again, other = ask(engine, request(seed=5), request(seed=5), request(seed=6))
    assert first.logprobs.tolist() == again.logprobs.tolist() != other.logprobs.tolist()


@pytest.mark.parametrize(
    ("said", "asked", "tokens", "reason"),
    [
        ([1, 2, 3, 4], request(max_tokens=3), [1, 2, 3], "length"),
        ([1, 2, 7, 4], request(stop_tokens=(7,)), [1, 2, 7], "stop"),
        ([1, 2, 3, 4], request(prompt=8), [1, 2], "context"),
        ([1, 2], request(max_tokens=2, stop_tokens=(7,)), [1, 2], "length"),
        ([], request(stop_tokens=(7,)), [7], "stop"),
    ],
)
def test_how_a_reply_ends(said: list[int], asked: GenerateRequest, tokens: list[int], reason: str) -> None:
    (got,) = ask(FakeEngine([said], max_context=10), asked)
    assert (got.tokens.tolist(), got.finish_reason) == (tokens, reason)


def test_a_prompt_that_fills_the_context_is_that_requests_failure() -> None:
    with pytest.raises(ModelError, match=r"prompt of 10 tokens.*max_context=10"):
        ask(FakeEngine([[1]], max_context=10), request(prompt=10))


def test_a_script_that_ran_out_says_so() -> None:
    with pytest.raises(EngineError, match="script has 1 replies"):
        ask(FakeEngine([[1]]), request(), request())


def test_slots_and_speed_set_the_latency() -> None:
    engine = FakeEngine(lambda _: [1] * 10, tokens_per_s=5, slots=2)

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        await engine.generate(request())
        alone = loop.time()
        await asyncio.gather(*(engine.generate(request()) for _ in range(5)))
        return alone, loop.time() - alone

    alone, five = clock.run(main())
    assert alone == pytest.approx(2.0) and five == pytest.approx(6.0)
    assert engine.statistics()["max_active"] == 2
    assert engine.statistics()["tokens"] == 60


def test_a_version_published_midway_marks_the_tokens_after_it() -> None:
    weights = FixedWeights(4)
    engine = FakeEngine(lambda _: [1] * 4, tokens_per_s=1, version_source=weights)

    async def main() -> Completion:
        asyncio.get_running_loop().call_later(2.5, setattr, weights, "version", 5)
        return await engine.generate(request())

    assert clock.run(main()).versions.tolist() == [4, 4, 5, 5]


def test_cancelling_frees_the_slot() -> None:
    engine = FakeEngine(lambda _: [1] * 10, tokens_per_s=1, slots=1)

    async def main() -> float:
        running, waiting = (asyncio.create_task(engine.generate(request())) for _ in range(2))
        await asyncio.sleep(1)
        assert (engine.statistics()["active"], engine.statistics()["waiting"]) == (1, 1)
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        assert (engine.statistics()["active"], engine.statistics()["waiting"]) == (0, 0)
        await engine.generate(request())
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(11.0)
    assert engine.statistics()["completed"] == 1


def test_closing_fails_what_is_in_flight_and_what_comes_after() -> None:
    engine = FakeEngine(lambda _: [1] * 10, tokens_per_s=1)

    async def main() -> None:
        running = asyncio.create_task(engine.generate(request()))
        await asyncio.sleep(1.5)
        await engine.aclose()
        with pytest.raises(EngineError, match="closed"):
            await running
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(request())

    clock.run(main())
    assert engine.statistics()["active"] == 0
