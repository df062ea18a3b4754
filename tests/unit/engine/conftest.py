"""A small model, engines over it, and short ways to ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.config import EngineConfig
from tunix_core.contracts import Completion, GenerateRequest, Model, Policy, Sampling
from tunix_core.engine import SlotEngine, make_engine
from tunix_core.engine.steps import Programs, Sizes, compile_programs
from tunix_core.models.config import DecoderConfig
from tunix_core.models.decoder import DecoderModel
from tunix_core.weights import WeightStore

VOCAB = 64
LIMIT_S = 180.0


class Letters:
    """A tokenizer: id i is the i-th letter from "A"; ids from 60 are special and leave no text."""

    vocab_size = VOCAB

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(c) - 65 for c in text], np.int32)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        return "".join(chr(65 + int(t)) for t in tokens if t < 60)


class Counter:
    """A model without arithmetic to speak of: the next token is the last one plus params["step"], or, with
    params["flat"] = 1, any token alike. Its cache, pieces of [S, 2, L], holds the tokens and the count of calls."""

    vocab_size = VOCAB
    max_positions = 64

    def init(self, seed: int) -> Any:
        return {"step": jnp.int32(1), "flat": jnp.float32(0)}

    def forward(self, params: Any, tokens: Any, positions: Any, seen_until: Any, remat: Any = "none") -> Any:
        raise NotImplementedError

    def init_cache(self, slots: int, length: int) -> Any:
        return {"tokens": jnp.zeros((slots, 2, length), jnp.int32)}

    def forward_cached(self, params: Any, tokens: Any, positions: Any, slots: Any, cache: Any) -> Any:
        start, kept = 0, []
        for piece in cache:
            length = piece["tokens"].shape[-1]
            here = jnp.where(positions < start, length, positions - start)
            kept.append(
                {"tokens": piece["tokens"].at[slots[:, None], 0, here].set(tokens, mode="drop").at[slots, 1].add(1)}
            )
            start += length
        following = (tokens + params["step"]) % VOCAB
        return jax.nn.one_hot(following, VOCAB) * 40 * (1 - params["flat"]), tuple(kept)

    def decode(self, params: Any, tokens: Any, positions: Any, cache: Any, fresh: Any, step: Any) -> Any:
        hidden, _ = self.forward_cached(params, tokens[:, None], positions[:, None], None, ())
        return hidden[:, 0], {"tokens": fresh["tokens"].at[:, 0, step].set(tokens).at[:, 1].add(1)}

    def settle(self, cache: Any, fresh: Any, positions: Any, counts: Any) -> Any:
        steps = jnp.arange(fresh["tokens"].shape[-1])
        at = jnp.where(steps < counts[:, None], positions[:, None] + steps, self.max_positions + 1)
        _, cache = self.forward_cached({"step": 0, "flat": 0}, fresh["tokens"][:, 0], at, jnp.arange(len(at)), cache)
        return tuple({"tokens": piece["tokens"].at[:, 1].add(fresh["tokens"][:, 1, :1] - 1)} for piece in cache)

    def logits(self, params: Any, hidden: Any) -> Any:
        return hidden.astype(jnp.float32)


class Kit:
    """What the tests of the engine share."""

    config = EngineConfig(slots=4, max_context=48, prefill_chunk=8, decode_steps=4, queue_size=64)
    counter = Counter()
    decoder = DecoderModel(
        DecoderConfig(
            vocab_size=VOCAB, width=24, layers=2, heads=3, kv_heads=1, head_dim=8, mlp_width=40, max_positions=64
        )
    )

    def policy(self, model: Model, params: Any = None) -> Policy:
        return Policy("tests/policy", model, params or model.init(0), Letters(), None)  # type: ignore[arg-type]

    def engine(
        self, model: Model | None = None, params: Any = None, *, store: Any = None, exact: bool = True, **sizes: Any
    ) -> SlotEngine:
        policy = self.policy(model or self.counter, params)
        weights = store or WeightStore(0, policy.params)
        return make_engine(policy, weights, replace(self.config, **sizes), deterministic=exact)

    def request(
        self,
        prompt: Sequence[int] | np.ndarray,
        *,
        seed: int = 0,
        max_tokens: int = 12,
        stop_tokens: tuple[int, ...] = (),
        stop_texts: tuple[str, ...] = (),
        **sampling: Any,
    ) -> GenerateRequest:
        how = Sampling(**sampling)
        return GenerateRequest(np.asarray(prompt, np.int32), how, seed, max_tokens, stop_tokens, stop_texts)

    def prompt(self, length: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng([seed, length]).integers(0, VOCAB, length).astype(np.int32)

    async def all(self, engine: SlotEngine, *requests: GenerateRequest) -> list[Completion]:
        return await asyncio.gather(*(engine.generate(r) for r in requests))

    def logits(self, tokens: np.ndarray, params: Any = None) -> np.ndarray:
        """The decoder's logits after each of int32 [T] tokens, from one forward pass over all: float64 [T, V]."""
        row = np.zeros((1, 64), np.int32)
        row[0, : len(tokens)] = tokens
        return np.asarray(self._forward(params or self.decoder.init(0), row))[0, : len(tokens)].astype(np.float64)

    def logprobs(self, params: Any, tokens: np.ndarray) -> np.ndarray:
        """Of each of int32 [T] tokens but the first, under the decoder at temperature 1: float64 [T - 1]."""
        logits = self.logits(tokens, params)[:-1]
        whole = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return whole[np.arange(len(whole)), tokens[1:]]

    @cached_property
    def _forward(self) -> Callable[[Any, Any], Any]:
        positions = np.arange(64)[None]

        def whole(params: Any, tokens: Any) -> Any:
            hidden = self.decoder.forward(params, tokens, positions, jnp.full_like(tokens, 64))
            return self.decoder.logits(params, hidden)

        return jax.jit(whole)

    def run(self, work: Awaitable[Any]) -> Any:
        """Runs to the end, or fails after LIMIT_S: nothing may wait for ever."""

        async def bounded() -> Any:
            return await asyncio.wait_for(work, LIMIT_S)

        return asyncio.run(bounded())

    def with_engine(self, engine: SlotEngine, work: Callable[[SlotEngine], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            await engine.start()
            try:
                return await work(engine)
            finally:
                await engine.aclose()

        return self.run(whole())


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Engines of one model and one set of sizes take the same programs, so that the tests compile little."""
    known: dict[tuple[int, Sizes], Programs] = {}

    def compile_once(model: Any, params: Any, sizes: Sizes, layout: Any, progress: Any) -> Programs:
        if (id(model), sizes) not in known:
            known[id(model), sizes] = compile_programs(model, params, sizes, layout, progress)
        return known[id(model), sizes]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunix_core.engine.engine.FIRST_PIECE", (24, 24))  # so that caches here lie in several, too
        patch.setattr("tunix_core.engine.engine.compile_programs", compile_once)
        yield


def _served(kit: Kit, *, exact: bool) -> Iterator[SlotEngine]:
    engine = kit.engine(kit.decoder, exact=exact)
    kit.run(engine.start())
    yield engine
    kit.run(engine.aclose())


@pytest.fixture(scope="session")
def exact(kit: Kit) -> Iterator[SlotEngine]:
    """A started deterministic engine over a real decoder."""
    yield from _served(kit, exact=True)


@pytest.fixture(scope="session")
def fast(kit: Kit) -> Iterator[SlotEngine]:
    """A started engine over the same decoder that shares what decoding computed, too."""
    yield from _served(kit, exact=False)
