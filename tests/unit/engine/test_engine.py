"""The engine's promises to its callers, over a model whose answers can be told in advance."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from tunix_core.contracts import Completion, Weights
from tunix_core.engine import SlotEngine
from tunix_core.errors import ConfigError, EngineError, ModelError
from tunix_core.weights import WeightStore


@pytest.fixture(scope="module")
def counting(kit: Any) -> Any:
    """A started engine that says the next number, again and again."""
    engine = kit.engine()
    kit.run(engine.start())
    yield engine
    kit.run(engine.aclose())


# ---- how a continuation ends -----------------------------------------------------------------------
def test_length(kit: Any, counting: SlotEngine) -> None:
    got = kit.run(counting.generate(kit.request([5], max_tokens=7)))
    assert got.tokens.tolist() == [6, 7, 8, 9, 10, 11, 12] and got.finish_reason == "length"
    assert got.tokens.dtype == got.versions.dtype == np.int32
    assert got.logprobs.dtype == got.full_logprobs.dtype == np.float32


@pytest.mark.parametrize("stop", [6, 7, 8, 9, 10, 11])
def test_a_stop_token_is_kept_and_nothing_after_it(kit: Any, counting: SlotEngine, stop: int) -> None:
    got = kit.run(counting.generate(kit.request([5], stop_tokens=(50, stop))))
    assert got.tokens.tolist() == list(range(6, stop + 1)) and got.finish_reason == "stop"
    assert len(got.logprobs) == len(got.full_logprobs) == len(got.versions) == len(got.tokens)


@pytest.mark.parametrize(("text", "last"), [("H", "H"), ("GH", "H"), ("IJK", "K"), ("HIJKLMN", "N"), ("ZZ", None)])
def test_a_stop_text_ends_at_the_token_that_completes_it(
    kit: Any, counting: SlotEngine, text: str, last: str | None
) -> None:
    got = kit.run(counting.generate(kit.request([5], stop_texts=("QQ", text))))
    assert got.tokens[-1] == (17 if last is None else ord(last) - 65)
    assert got.finish_reason == ("length" if last is None else "stop")
    assert len(got.logprobs) == len(got.versions) == len(got.tokens)


def test_the_context_ends_a_continuation(kit: Any, counting: SlotEngine) -> None:
    got = kit.run(counting.generate(kit.request(np.arange(44), max_tokens=30)))
    assert len(got.tokens) == 4 and got.finish_reason == "context"
    one = kit.run(counting.generate(kit.request(np.arange(47), max_tokens=30)))
    assert one.tokens.tolist() == [47] and one.finish_reason == "context"


# ---- what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": np.arange(48)}, "48 tokens .*max_context is 48"),
        ({"prompt": []}, "T >= 1"),
        ({"prompt": [3, 64]}, "64; the model knows 0 to 63"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop_tokens": tuple(range(9))}, "9 stop tokens .* at most 8"),
        ({"stop_texts": ("",)}, "stop text is empty"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"min_p": 1.5}, "min_p is 1.5"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_alone(
    kit: Any, counting: SlotEngine, change: dict[str, Any], says: str
) -> None:
    good = kit.request([5], max_tokens=2)
    bad = kit.request(**{"prompt": [5], **change})

    async def work() -> list[Any]:
        return await asyncio.gather(counting.generate(bad), counting.generate(good), return_exceptions=True)

    refused, served = kit.run(work())
    assert isinstance(refused, ModelError) and not refused.retry
    with pytest.raises(ModelError, match=says):
        raise refused
    assert served.tokens.tolist() == [6, 7]


@pytest.mark.parametrize(
    ("change", "says"),
    [({"slots": 0}, "slots is 0"), ({"max_context": 65}, "max_context is 65; expected 2 to 64")],
)
def test_a_size_that_cannot_be_is_a_config_error(kit: Any, change: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        kit.engine(**change)


def test_asking_before_start_is_an_error(kit: Any) -> None:
    with pytest.raises(EngineError, match="await start"):
        kit.run(kit.engine().generate(kit.request([5])))


# ---- many at once ----------------------------------------------------------------------------------
def test_more_requests_than_slots_and_queue_hold_are_all_answered(kit: Any) -> None:
    engine = kit.engine(queue_size=1)
    requests = [kit.request([i % 40], max_tokens=1 + i % 5) for i in range(30)]
    for i, got in enumerate(kit.with_engine(engine, lambda e: kit.all(e, *requests))):
        assert got.tokens.tolist() == [(i % 40 + 1 + t) % 64 for t in range(1 + i % 5)]


def test_long_prompts_do_not_starve_decoding_nor_decoding_them(kit: Any) -> None:
    """A short request among long prompts is answered before they are, and they are answered."""
    order: list[str] = []

    async def ask(engine: SlotEngine, name: str, request: Any) -> None:
        await engine.generate(request)
        order.append(name)

    async def work(engine: SlotEngine) -> None:
        long = [ask(engine, "long", kit.request(kit.prompt(46, seed=i), max_tokens=1)) for i in range(40)]
        await asyncio.gather(*long[:20], ask(engine, "short", kit.request([1], max_tokens=5)), *long[20:])

    kit.with_engine(kit.engine(), work)
    assert len(order) == 41 and order.index("short") < 30


@pytest.mark.parametrize(
    ("chunk", "steps", "expected"),
    [(8, 1, [32, 13, 0, 0, 0]), (4, 1, [16, 16, 13, 0, 0]), (4, 2, [32, 13, 0, 0, 0]), (2, 1, [16, 16, 13, 0, 0])],
)
def test_decoding_goes_on_between_the_chunks_of_a_long_prompt(
    kit: Any, chunk: int, steps: int, expected: list[int]
) -> None:
    """Round by round: while a prompt of many chunks is filled, every round decodes for those who can, and fills no
    more than four times what its decode call computes for all four slots, but one call of four rows at least. All rows
    are the prompt's, since nobody else is filled.
    """
    gate = Gate(kit.counter.init(0))

    async def work(engine: SlotEngine) -> list[float]:
        short = await submitted(engine, [kit.request([i], max_tokens=40) for i in range(3)])
        gate.let(1)
        await until(lambda: engine.statistics()["decode_calls"] == 1)
        long = await submitted(engine, [kit.request(kit.prompt(46), max_tokens=1)])
        filled = []
        for rounds in range(2, 7):
            gate.let(1)
            await until(lambda rounds=rounds: engine.statistics()["decode_calls"] == rounds)
            filled.append(engine.statistics()["prefill_tokens"])
        gate.let(1000)
        await asyncio.gather(*short, *long)
        return filled

    engine = kit.engine(store=gate, decode_steps=steps, prefill_chunk=chunk)
    assert np.diff(kit.with_engine(engine, work), prepend=0).tolist() == expected


@pytest.mark.parametrize("exact", [True, False])
def test_a_group_computes_its_prompt_once(kit: Any, exact: bool) -> None:
    prompt = kit.prompt(30)
    members = [kit.request(prompt, seed=s) for s in range(8)]

    async def work(engine: SlotEngine) -> Any:
        got = await kit.all(engine, *members)
        return got, engine.statistics()

    got, statistics = kit.with_engine(kit.engine(exact=exact), work)
    assert sorted(c.cached_tokens for c in got) == [0] + [29] * 7
    assert statistics["prefill_tokens"] == 29 and statistics["cached_tokens"] == 7 * 29


@pytest.mark.parametrize("exact", [True, False])
def test_many_samples_of_one_request_prefill_it_once_and_are_those_of_asking_one_by_one(kit: Any, exact: bool) -> None:
    asked, seeds = kit.request(kit.prompt(30), max_tokens=6), [3, 1, 2**40]

    async def work(engine: SlotEngine) -> Any:
        got = await engine.generate_many(asked, seeds)
        computed = engine.statistics()["prefill_tokens"]
        return got, computed, [await engine.generate(replace(asked, seed=seed)) for seed in seeds]

    params = {"step": np.int32(1), "flat": np.float32(1)}
    got, computed, alone = kit.with_engine(kit.engine(params=params, exact=exact), work)
    assert computed == 29 and len({c.tokens.tobytes() for c in got}) == 3
    for a, b in zip(got, alone, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)


def test_many_samples_fail_together(kit: Any, counting: SlotEngine) -> None:
    with pytest.raises(ModelError, match="max_tokens is 0"):
        kit.run(counting.generate_many(kit.request([5], max_tokens=0), [1, 2]))
    assert kit.run(counting.generate_many(kit.request([5]), [])) == []


def test_prompts_that_share_their_beginning_compute_it_once(kit: Any) -> None:
    shared = kit.prompt(16)
    requests = [kit.request(np.append(shared, kit.prompt(10, seed=i)), seed=i) for i in range(4)]

    async def work(engine: SlotEngine) -> float:
        await kit.all(engine, *requests)
        return engine.statistics()["prefill_tokens"]

    assert kit.with_engine(kit.engine(), work) == 16 + 4 * 9


def test_the_next_turn_computes_only_what_is_new(kit: Any) -> None:
    """What decoding wrote is shared as well; of each turn, only the last sampled token was never read."""

    async def work(engine: SlotEngine) -> tuple[int, float]:
        history, new = kit.prompt(11), 11
        for turn in range(3):
            said = await engine.generate(kit.request(history, max_tokens=5, seed=turn))
            observation = kit.prompt(6, seed=turn)
            history, new = np.concatenate([history, said.tokens, observation]), new + 6
        return new - 6, engine.statistics()["prefill_tokens"]

    new, computed = kit.with_engine(kit.engine(exact=False), work)
    assert computed <= 1.1 * new


def test_a_small_pool_evicts_and_stays_right(kit: Any, fast: SlotEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [kit.request(kit.prompt(20 + i % 3, seed=i % 5), seed=i, max_tokens=4) for i in range(30)]

    async def work(engine: SlotEngine) -> Any:
        return await kit.all(engine, *requests), engine.statistics()

    large, _ = kit.run(work(fast))
    engine = kit.engine(kit.decoder)
    engine._sizes = replace(engine._sizes, blocks=6)
    small, statistics = kit.with_engine(engine, work)
    assert statistics["prefix_blocks"] <= 6
    for a, b in zip(small, large, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)


# ---- weights ---------------------------------------------------------------------------------------
class Switching:
    """A weight source that changes by itself after so many reads."""

    def __init__(self, reads: int, first: Any = None, then: Any = None) -> None:
        self.reads, self.seen = reads, 0
        self.versions = (
            Weights(0, first or {"step": np.int32(1), "flat": np.float32(0)}),
            Weights(1, then or {"step": np.int32(2), "flat": np.float32(0)}),
        )

    def latest(self) -> Weights:
        self.seen += 1
        return self.versions[self.seen > self.reads]


def test_new_weights_take_effect_in_flight_and_each_token_says_whose_it_is(kit: Any) -> None:
    engine = kit.engine(store=Switching(reads=3))
    got = kit.with_engine(engine, lambda e: e.generate(kit.request([5], max_tokens=20)))
    steps = np.diff(np.append(5, got.tokens))
    np.testing.assert_array_equal(steps, got.versions + 1)
    assert got.versions[0] == 0 and got.versions[-1] == 1
    assert (np.diff(got.versions) >= 0).all()


@pytest.mark.parametrize("how", ["keep", "recompute"])
def test_new_weights_keep_or_recompute_what_slots_hold(kit: Any, how: str) -> None:
    """After the swap, a token's log-probability is the new weights' over a context that they computed, or not."""
    old, new = kit.decoder.init(0), jax.tree.map(lambda leaf: leaf * 1.5, kit.decoder.init(0))
    asked = kit.request(kit.prompt(20), max_tokens=20)

    async def work(engine: SlotEngine) -> Any:
        return await engine.generate(asked), engine.statistics()["prefill_tokens"]

    source = Switching(reads=4, first=old, then=new)
    got, computed = kit.with_engine(kit.engine(kit.decoder, old, store=source, weight_update=how), work)
    swapped = int((got.versions == 0).sum())
    assert 0 < swapped < 20
    assert computed == 19 + (19 + swapped if how == "recompute" else 0)
    whole = kit.logprobs(new, np.append(asked.prompt, got.tokens))[19 + swapped :]
    error = np.abs(got.full_logprobs[swapped:] - whole).max()
    assert error < 1e-4 if how == "recompute" else error > 1e-3


@pytest.mark.parametrize("exact", [True, False])
def test_an_older_versions_prefixes_miss(kit: Any, exact: bool) -> None:
    params = kit.counter.init(0)
    store = WeightStore(0, params)
    mine = kit.request(kit.prompt(20))

    async def work(engine: SlotEngine) -> list[int]:
        cached = []
        for version in (0, 0, 1, 1):
            if version > store.latest().version:
                store.publish(version, params)
            cached.append((await engine.generate(mine)).cached_tokens)
        return cached

    assert kit.with_engine(kit.engine(store=store, exact=exact), work) == [0, 19, 0, 19]


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_sampled_by_new_weights_alone_has_its_whole_context_from_them(
    kit: Any, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that come while a prompt is being filled: it is filled again, and can be shared."""
    monkeypatch.setattr("tunix_core.engine.engine.WIDE_PREFILL", 8)  # four rows: the prompt takes several rounds
    old, new = kit.decoder.init(0), jax.tree.map(lambda leaf: leaf * 1.5, kit.decoder.init(0))
    source = Switching(reads=2, first=old, then=new)  # the first read is the start's
    mine = kit.request(kit.prompt(47), max_tokens=3)

    async def work(engine: SlotEngine) -> tuple[Any, float, int]:
        first = await engine.generate(mine)
        return first, engine.statistics()["prefill_tokens"], (await engine.generate(mine)).cached_tokens

    engine = kit.engine(kit.decoder, old, store=source, exact=exact, prefill_chunk=2, decode_steps=1)
    got, computed, cached = kit.with_engine(engine, work)
    assert computed > 46 and (got.versions == 1).all()
    whole = kit.logprobs(new, np.append(mine.prompt, got.tokens))[46:]
    assert np.abs(got.full_logprobs - whole).max() < 1e-4
    assert cached == 46


def test_weights_of_another_shape_end_the_engine(kit: Any) -> None:
    store = WeightStore(0, kit.counter.init(0))

    async def work(engine: SlotEngine) -> None:
        await engine.generate(kit.request([1]))
        store.publish(1, {"step": np.zeros(2, np.int32), "flat": np.float32(0)})
        await engine.generate(kit.request([1]))

    with pytest.raises(EngineError, match="version 1 have another structure, shape or dtype"):
        kit.with_engine(kit.engine(store=store), work)


# ---- cancellation, failure, closing ----------------------------------------------------------------
class Gate:
    """A weight source that lets the engine's thread pass once, to start, and then as often as it is told."""

    def __init__(self, params: Any) -> None:
        self.params, self._passes = params, threading.Semaphore(1)
        self.failure: BaseException | None = None

    def let(self, rounds: int) -> None:
        self._passes.release(rounds)

    def latest(self) -> Weights:
        assert self._passes.acquire(timeout=60)
        if self.failure is not None:
            raise self.failure
        return Weights(0, self.params)


async def submitted(engine: SlotEngine, requests: list[Any]) -> list[asyncio.Task[Completion]]:
    tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
    await asyncio.sleep(0)  # each runs until it waits for its answer
    return tasks


async def until(holds: Callable[[], bool]) -> None:
    """Looks at every turn of the event loop; the thread it watches cannot tell it."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_cancelling_frees_slots_and_places_in_the_queue(kit: Any) -> None:
    gate = Gate(kit.counter.init(0))

    async def work(engine: SlotEngine) -> Any:
        tasks = await submitted(engine, [kit.request([i], max_tokens=40) for i in range(12)])
        gate.let(2)
        await until(lambda: engine.statistics()["slots_busy"] == 1)
        for task in tasks:
            task.cancel()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*tasks, return_exceptions=True))
        gate.let(1000)
        got = await kit.all(engine, *[kit.request([i], max_tokens=3) for i in range(8)])
        return got, engine.statistics()

    got, statistics = kit.with_engine(kit.engine(store=gate), work)
    assert [c.tokens.tolist() for c in got] == [[i + 1, i + 2, i + 3] for i in range(8)]
    assert statistics["slots_busy"] == 0 and statistics["queued"] == 0
    assert statistics["requests"] == 8


def test_when_the_first_of_a_group_is_cancelled_the_others_go_on(kit: Any) -> None:
    gate, prompt = Gate(kit.counter.init(0)), kit.prompt(40)

    async def work(engine: SlotEngine) -> Any:
        first, *rest = await submitted(engine, [kit.request(prompt, seed=s, max_tokens=2) for s in range(5)])
        gate.let(1)
        await until(lambda: engine.statistics()["prefill_calls"] >= 1)
        first.cancel()
        gate.let(1000)
        return await asyncio.gather(*rest)

    assert len(kit.with_engine(kit.engine(store=gate), work)) == 4


@pytest.mark.parametrize("kind", [OSError, SystemExit])  # a panic of a tokenizer in Rust is no Exception either
def test_a_failure_fails_all_who_wait_and_all_who_come_later(kit: Any, kind: type[BaseException]) -> None:
    gate = Gate(kit.counter.init(0))

    async def work(engine: SlotEngine) -> list[Any]:
        tasks = await submitted(engine, [kit.request([i % 60], max_tokens=40) for i in range(100)])
        gate.let(1)
        await until(lambda: engine.statistics()["decode_calls"] >= 1)
        gate.failure = kind("the device is gone")
        gate.let(1)
        waited = await asyncio.gather(*tasks, return_exceptions=True)
        later = await asyncio.gather(engine.generate(kit.request([1])), return_exceptions=True)
        return waited + later

    errors = kit.with_engine(kit.engine(store=gate), work)
    assert len(errors) == 101 and len({id(e) for e in errors}) == 101
    for error in errors:
        assert isinstance(error, EngineError) and "the device is gone" in str(error)
        assert isinstance(error.__cause__, kind)


def test_a_failure_to_start_says_why(kit: Any) -> None:
    gate = Gate(kit.counter.init(0))
    gate.failure = OSError("no weights")
    engine = kit.engine(store=gate)
    with pytest.raises(EngineError, match="no weights"):
        kit.run(engine.start())
    with pytest.raises(EngineError, match="no weights"):
        kit.run(engine.generate(kit.request([1])))


def test_closing_fails_who_still_waits_and_ends_the_thread(kit: Any) -> None:
    gate = Gate(kit.counter.init(0))
    engine = kit.engine(store=gate)

    async def work() -> list[Any]:
        await engine.start()
        tasks = await submitted(engine, [kit.request([1], max_tokens=40) for _ in range(9)])
        closing = asyncio.create_task(engine.aclose())
        await asyncio.sleep(0)
        gate.let(1)
        await closing
        await engine.aclose()
        return await asyncio.gather(*tasks, return_exceptions=True)

    before = threading.active_count()
    errors = kit.run(work())
    assert all(isinstance(e, EngineError) and "closed" in str(e) for e in errors)
    assert threading.active_count() <= before
    with pytest.raises(EngineError, match="closed"):
        kit.run(engine.generate(kit.request([1])))


# ---- compilation and reports -----------------------------------------------------------------------
def test_nothing_compiles_after_the_start(kit: Any) -> None:
    compiled: list[str] = []

    def listen(name: str, seconds: float, **_: Any) -> None:
        if "backend_compile" in name:
            compiled.append(name)

    store = WeightStore(0, kit.counter.init(0))
    progress: list[tuple[str, int, int]] = []
    engine = kit.engine(store=store, exact=False, decode_steps=2)  # sizes of its own: nothing is reused
    engine._on_progress = lambda *event: progress.append(event)

    async def work(engine: SlotEngine) -> None:
        started = len(compiled)
        assert started >= 5  # the listener hears
        await varied(engine, 1)
        store.publish(1, {"step": jax.device_put(np.int32(2)), "flat": np.float32(0)})  # committed, or NumPy
        await varied(engine, 2)
        assert len(compiled) == started

    async def varied(engine: SlotEngine, seed: int) -> None:
        rng = np.random.default_rng(seed)
        kinds: list[dict[str, Any]] = [{}, {"top_p": 0.5}, {"temperature": 0.0}, {"stop_texts": ("AB",)}]
        await kit.all(
            engine,
            *(
                kit.request(kit.prompt(int(rng.integers(1, 46)), seed=i), max_tokens=1 + i % 9, **kinds[i % 4])
                for i in range(30)
            ),
        )

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        kit.with_engine(engine, work)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert [done for _, done, _ in progress] == list(range(1, progress[0][2] + 1))


def test_statistics_add_up(kit: Any) -> None:
    async def work(engine: SlotEngine) -> Any:
        await kit.all(engine, *[kit.request(kit.prompt(10, seed=i), max_tokens=8) for i in range(4)])
        return engine.statistics()

    statistics = kit.with_engine(kit.engine(), work)
    assert statistics["requests"] == 4 and statistics["tokens_sampled"] == 32
    assert statistics["prefill_tokens"] + statistics["cached_tokens"] == 4 * 9
    assert 0 < statistics["decoding"] <= 1 and statistics["version"] == 0


@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_requests(kit: Any) -> None:
    """What Python and the devices hold after 10,000 requests is what they held after 2,000."""
    held: list[tuple[int, int]] = []

    async def work(engine: SlotEngine) -> None:
        tracemalloc.start()
        for batch in range(100):
            await kit.all(
                engine,
                *(kit.request(kit.prompt(1 + i % 40, seed=batch), seed=i, max_tokens=1 + i % 3) for i in range(100)),
            )
            if batch in (19, 99):
                gc.collect()
                arrays = sum(array.nbytes for array in jax.live_arrays())
                held.append((tracemalloc.get_traced_memory()[0], arrays))
        tracemalloc.stop()

    kit.with_engine(kit.engine(exact=False, queue_size=200), work)
    (early, early_arrays), (late, late_arrays) = held
    assert late - early < 200_000 and late_arrays == early_arrays
