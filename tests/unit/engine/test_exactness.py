"""What is sampled is right, and with a deterministic engine the same to the bit, whoever else is there."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tunix_core.contracts import Completion, GenerateRequest
from tunix_core.engine import SlotEngine


def same(a: Completion, b: Completion) -> None:
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_array_equal(a.logprobs.view(np.int32), b.logprobs.view(np.int32))
    np.testing.assert_array_equal(a.full_logprobs.view(np.int32), b.full_logprobs.view(np.int32))
    np.testing.assert_array_equal(a.versions, b.versions)
    assert a.finish_reason == b.finish_reason


def others(kit: Any, count: int, seed: int) -> list[GenerateRequest]:
    """Requests of all kinds: long and short, tempered, truncated, greedy."""
    rng = np.random.default_rng(seed)
    kinds = [{}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 5}, {"temperature": 0.0}, {"min_p": 0.1}]
    return [
        kit.request(
            kit.prompt(int(rng.integers(1, 40)), seed=seed * 100 + i),
            seed=i,
            max_tokens=int(rng.integers(1, 30)),
            **kinds[i % len(kinds)],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("which", ["exact", "fast"])
@pytest.mark.parametrize("length", [1, 2, 9, 17, 30])
def test_log_probabilities_and_greedy_tokens_are_those_of_the_whole_sequence_at_once(
    kit: Any, request: pytest.FixtureRequest, which: str, length: int
) -> None:
    engine: SlotEngine = request.getfixturevalue(which)
    prompt = kit.prompt(length, seed=5)
    sampled, greedy = kit.run(
        kit.all(engine, kit.request(prompt, temperature=0.8, seed=3), kit.request(prompt, temperature=0.0))
    )
    for completion, temperature in ((sampled, 0.8), (greedy, 1.0)):
        logits = kit.logits(np.append(prompt, completion.tokens))[length - 1 : -1] / temperature
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        np.testing.assert_allclose(completion.full_logprobs, logp[np.arange(len(logp)), completion.tokens], atol=1e-5)
        if completion is greedy:
            np.testing.assert_array_equal(completion.tokens, logits.argmax(-1))
            np.testing.assert_array_equal(completion.logprobs, 0)
        else:
            np.testing.assert_array_equal(completion.logprobs, completion.full_logprobs)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.6, "top_p": 0.9}])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 20, 33])
def test_a_sample_is_the_same_to_the_bit_in_any_company(
    kit: Any, exact: SlotEngine, length: int, sampling: dict[str, float]
) -> None:
    """Alone and cold; again, after a hit; in the middle of a crowd, twice; after other prefills ran."""
    mine = kit.request(kit.prompt(length, seed=11), seed=2**63 + 17, max_tokens=14, **sampling)

    async def work() -> list[Completion]:
        cold = await exact.generate(mine)
        hit = await exact.generate(mine)
        crowd = await kit.all(exact, *others(kit, 9, 1), mine, *others(kit, 5, 2), mine)
        await kit.all(exact, *others(kit, 12, 3))
        late = await kit.all(exact, *others(kit, 3, 4), mine)
        return [cold, hit, crowd[9], crowd[-1], late[-1]]

    first, *again = kit.run(work())
    assert length == 1 or again[0].cached_tokens > 0
    for completion in again:
        same(first, completion)


def test_a_sample_is_the_same_to_the_bit_in_a_new_engine(kit: Any, exact: SlotEngine) -> None:
    mine = kit.request(kit.prompt(19, seed=12), seed=9, max_tokens=14)
    first = kit.run(exact.generate(mine))
    same(first, kit.with_engine(kit.engine(kit.decoder, exact=True, slots=4), lambda engine: engine.generate(mine)))


def test_a_sample_is_the_same_up_to_rounding_with_other_fused_steps(kit: Any, exact: SlotEngine) -> None:
    mine = kit.request(kit.prompt(19, seed=12), seed=9, max_tokens=14)
    first = kit.run(exact.generate(mine))
    other = kit.engine(kit.decoder, exact=True, slots=4, decode_steps=3)
    again = kit.with_engine(other, lambda engine: engine.generate(mine))
    np.testing.assert_array_equal(again.tokens, first.tokens)
    np.testing.assert_allclose(again.logprobs, first.logprobs, atol=1e-5)


def test_the_next_turn_is_the_same_to_the_bit_with_or_without_the_last_one_in_the_cache(
    kit: Any, exact: SlotEngine
) -> None:
    opening = kit.prompt(18, seed=13)
    said = kit.run(exact.generate(kit.request(opening, max_tokens=6)))
    following = np.concatenate([opening, said.tokens, kit.prompt(5, seed=14)])
    mine = kit.request(following, seed=4)
    warm = kit.run(exact.generate(mine))
    assert warm.cached_tokens == 16  # only what a prefill computed, up to a multiple of the chunk
    cold = kit.with_engine(kit.engine(kit.decoder, exact=True, slots=4), lambda engine: engine.generate(mine))
    assert cold.cached_tokens == 0
    same(warm, cold)


@pytest.mark.parametrize("exact_", [True, False])
def test_a_block_given_out_twice_at_once_holds_what_it_was_given_last(kit: Any, exact_: bool) -> None:
    """Of four prefixes that end together, the third supersedes two, and the fourth gets one of their places."""
    first, second = np.random.default_rng(0).integers(0, 60, (2, 8))

    def after(*more: int) -> np.ndarray:
        return np.array([*first, *more, 7], np.int32)  # the last token is read by decoding

    alone = np.array([*second, 7], np.int32)
    probe = kit.request(alone, max_tokens=6, temperature=1.0, seed=5)

    async def in_company(engine: SlotEngine) -> Completion:
        await engine.generate(kit.request(after(9), max_tokens=1))
        prompts = (after(1, 2), after(1), after(1, 2, 3), alone)
        await asyncio.gather(*(engine.generate(kit.request(prompt, max_tokens=1)) for prompt in prompts))
        return await engine.generate(probe)

    def made() -> SlotEngine:
        return kit.engine(kit.decoder, exact=exact_, slots=4)

    wanted = kit.with_engine(made(), lambda engine: engine.generate(probe))
    found = kit.with_engine(made(), in_company)
    assert found.cached_tokens == 8
    np.testing.assert_array_equal(found.tokens, wanted.tokens)


@pytest.mark.parametrize("which", ["exact", "fast"])
def test_joining_and_leaving_gives_the_tokens_of_running_alone(
    kit: Any, request: pytest.FixtureRequest, which: str
) -> None:
    engine: SlotEngine = request.getfixturevalue(which)
    requests = others(kit, 20, 6)

    async def work() -> tuple[list[Completion], list[Completion]]:
        together = await kit.all(engine, *requests)
        return together, [await engine.generate(r) for r in requests]

    for a, b in zip(*kit.run(work()), strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=2e-5)


def test_with_a_uniform_policy_the_members_of_a_group_all_differ(kit: Any, exact: SlotEngine) -> None:
    """Differing seeds alone make differing samples."""
    params = {**kit.decoder.init(0), "head": np.zeros((24, 64), np.float32)}
    members = [kit.request([1, 2, 3], seed=s << 32 if s % 2 else s, max_tokens=16) for s in range(1, 9)]
    engine = kit.engine(kit.decoder, params, slots=4)
    got = kit.with_engine(engine, lambda engine: kit.all(engine, *members))
    assert len({c.tokens.tobytes() for c in got}) == 8
    for completion in got:
        np.testing.assert_allclose(completion.logprobs, -np.log(64), rtol=1e-6)
