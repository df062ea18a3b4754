"""Several workers behind one engine keep its promises."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import jax
import numpy as np
import pytest

from tunix_core.contracts import Completion, GenerateRequest, Weights
from tunix_core.engine import SlotEngine
from tunix_core.engine.layout import Layout
from tunix_core.engine.steps import compile_programs
from tunix_core.errors import ConfigError, EngineError
from tunix_core.weights import WeightStore

TWO: dict[str, Any] = {"slots": 8, "workers": 2}  # of four slots each, as the kit's one has


def served(engine: SlotEngine) -> list[float]:
    """Requests that each worker answered."""
    return [worker.counters["requests"] for worker in engine._workers]


async def turns(kit: Any, engine: SlotEngine) -> list[Completion]:
    """Two turns of twelve conversations in groups of three, tempered and truncated, then what all have said."""
    asked = [kit.request(kit.prompt(11 + i // 3, seed=i // 3), seed=i, max_tokens=9, top_p=0.9) for i in range(12)]
    said = await kit.all(engine, *asked)

    def next_turn(i: int, request: GenerateRequest, got: Completion) -> GenerateRequest:
        return kit.request(np.concatenate([request.prompt, got.tokens, [i, 2, 3]]), seed=100 + i, max_tokens=9)

    following = [next_turn(i, *pair) for i, pair in enumerate(zip(asked, said, strict=True))]
    return said + await kit.all(engine, *following)


def test_a_sample_is_the_same_to_the_bit_whichever_worker_serves_it(kit: Any, exact: SlotEngine) -> None:
    async def work(engine: SlotEngine) -> tuple[list[Completion], list[float]]:
        return await turns(kit, engine), served(engine)

    alone = kit.run(turns(kit, exact))
    shared, by_worker = kit.with_engine(kit.engine(kit.decoder, exact=True, **TWO), work)
    assert min(by_worker) > 0 and sum(by_worker) == 24
    for a, b in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.logprobs.view(np.int32), b.logprobs.view(np.int32))
        np.testing.assert_array_equal(a.full_logprobs.view(np.int32), b.full_logprobs.view(np.int32))


def test_a_crowd_with_one_prompt_is_served_by_all_workers(kit: Any) -> None:
    """All of it is sent to the worker that got the prompt first, where it waits for the prompt's blocks."""

    async def work(engine: SlotEngine) -> list[float]:
        blockers = [asyncio.create_task(engine.generate(kit.request(kit.prompt(11, seed=i), seed=i))) for i in range(8)]
        await asyncio.sleep(0)
        crowd = [kit.request(kit.prompt(30, seed=99), seed=i, max_tokens=9) for i in range(64)]
        await kit.all(engine, *crowd)
        await asyncio.gather(*blockers)
        return served(engine)

    by_worker = kit.with_engine(kit.engine(kit.decoder, exact=True, **TWO), work)
    assert sum(by_worker) == 72 and min(by_worker) > 20


def test_later_turns_compute_only_what_is_new(kit: Any) -> None:
    async def work(engine: SlotEngine) -> tuple[list[float], float]:
        histories, new = [kit.prompt(11, seed=i) for i in range(8)], 8 * 11
        for turn in range(3):
            said = await kit.all(engine, *(kit.request(h, max_tokens=5, seed=turn) for h in histories))
            heard = kit.prompt(6, seed=turn)
            histories = [np.concatenate([h, s.tokens, heard]) for h, s in zip(histories, said, strict=True)]
            new += 8 * 6
        return served(engine), engine.statistics()["prefill_tokens"] / (new - 8 * 6)

    by_worker, ratio = kit.with_engine(kit.engine(exact=False, **TWO), work)
    assert by_worker == [12, 12] and ratio <= 1.1


def test_workers_share_programs_and_say_their_numbers_together(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compiling(*arguments: Any) -> Any:
        calls.append(arguments)
        return compile_programs(*arguments)

    monkeypatch.setattr("tunix_core.engine.engine.compile_programs", compiling)
    progress: list[tuple[str, int, int]] = []
    engine = kit.engine(**TWO)
    engine._on_progress = lambda *event: progress.append(event)

    async def work(engine: SlotEngine) -> Any:
        before = engine.statistics()
        await kit.all(engine, *[kit.request(kit.prompt(10, seed=i), max_tokens=8) for i in range(8)])
        return before, engine.statistics()

    before, after = kit.with_engine(engine, work)
    assert len(calls) == 1 and [done for _, done, _ in progress] == list(range(1, int(before["programs"]) + 1))
    assert before["decoding"] == before["slots_busy"] == before["requests"] == 0
    assert after["requests"] == 8 and after["tokens_sampled"] == 64
    assert after["prefill_tokens"] + after["cached_tokens"] == 8 * 9
    assert 0 < after["decoding"] <= 1 and after["slots_busy"] <= 1 and after["queued"] == after["version"] == 0
    assert engine.statistics()["requests"] == 8  # after the end, too


def test_every_worker_takes_new_weights(kit: Any) -> None:
    store = WeightStore(0, kit.counter.init(0))

    async def work(engine: SlotEngine) -> tuple[list[Completion], list[float]]:
        asked = [kit.request([i], max_tokens=3) for i in range(8)]
        await kit.all(engine, *asked)
        store.publish(1, {"step": np.int32(2), "flat": np.float32(0)})
        return await kit.all(engine, *asked), served(engine)

    got, by_worker = kit.with_engine(kit.engine(store=store, **TWO), work)
    assert min(by_worker) > 0
    for i, completion in enumerate(got):
        assert completion.tokens.tolist() == [i + 2, i + 4, i + 6] and (completion.versions == 1).all()


class FailingOnce:
    """A weight source of which one reader gets an error, and everybody else the weights."""

    def __init__(self, params: Any) -> None:
        self._weights, self.armed, self._lock = Weights(0, params), False, threading.Lock()

    def latest(self) -> Weights:
        with self._lock:
            fails, self.armed = self.armed, False
        if fails:
            raise OSError("the device is gone")
        return self._weights


def test_the_failure_of_one_worker_fails_all_requests_and_ends_all_threads(kit: Any) -> None:
    source, before = FailingOnce(kit.counter.init(0)), threading.active_count()

    async def work(engine: SlotEngine) -> list[Any]:
        source.armed = True
        asked = [engine.generate(kit.request([i % 60], max_tokens=40)) for i in range(100)]
        waited = await asyncio.gather(*asked, return_exceptions=True)
        return waited + await asyncio.gather(engine.generate(kit.request([1])), return_exceptions=True)

    errors = kit.with_engine(kit.engine(store=source, **TWO), work)
    assert threading.active_count() <= before and len(errors) == 101
    for error in errors:
        assert isinstance(error, EngineError) and "the device is gone" in str(error)
        assert isinstance(error.__cause__, OSError)


def test_closing_ends_every_thread(kit: Any) -> None:
    before = threading.active_count()

    async def work(engine: SlotEngine) -> int:
        await engine.generate(kit.request([1]))
        return threading.active_count()

    assert kit.with_engine(kit.engine(**TWO), work) >= before + 2
    assert threading.active_count() <= before


def test_slots_that_workers_cannot_share_out_are_refused_with_the_numbers(kit: Any) -> None:
    with pytest.raises(ConfigError, match=r"engine\.slots is 7, which engine\.workers of 2"):
        kit.engine(slots=7, workers=2)


def test_several_workers_on_a_mesh_are_refused() -> None:
    mesh = jax.sharding.AbstractMesh((2, 2), ("data", "tensor"))
    with pytest.raises(ConfigError, match=r"engine\.workers is 2 on a mesh of 4 devices"):
        Layout(mesh, {}, slots=4, workers=2)  # type: ignore[arg-type]
