"""Decoding with SmolLM2-135M: tokens a second, beside what the machine's matrix products and memory allow.

All slots hold distinct prompts, prefilled by an earlier request, and sample the same number of tokens, so that
what is timed is decoding alone. S slots, V vocabulary.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tunix_core.config import EngineConfig
from tunix_core.contracts import GenerateRequest, Policy, Sampling
from tunix_core.engine import SlotEngine, make_engine
from tunix_core.engine.sampling import Settings, draw
from tunix_core.weights import WeightStore

PROMPT, NEW, STEPS = 64, 48, 8  # 48 tokens follow one look-up of the prompt's prefix
SAMPLED = {
    "sampled": Sampling(temperature=1.0),
    "greedy": Sampling(temperature=0.0),
    "top_p": Sampling(temperature=1.0, top_p=0.95),
}
BANDWIDTH_BYTES = 2**28
REPEATS = 4  # steps in one call of the matrix products alone


class Decoding:
    """An engine with a number of slots, and the programs it is measured against."""

    def __init__(self, policy: Policy, slots: int) -> None:
        config = EngineConfig(slots=slots, max_context=2 * PROMPT, prefill_chunk=32, decode_steps=STEPS)
        self.slots, self._policy = slots, policy
        self._engine = make_engine(policy, WeightStore(0, policy.params), config, deterministic=False)
        self._products = _timed(_products(policy, slots))
        self._head = _timed(_head(policy, slots, None))
        self._drawn = _timed(_head(policy, slots, _settings(slots)))

    async def measure(self, rounds: int, between: Callable[[], None]) -> dict[str, float]:
        """Medians over interleaved rounds, in seconds of a step but for the shares; `between` is called in each."""
        await self._engine.start()
        try:
            await _ask(self._engine, self.slots, SAMPLED["sampled"], 1)
            taken: dict[str, list[float]] = {}
            for _ in range(rounds):
                for name, sampling in SAMPLED.items():
                    for key, value in (await self._step(sampling)).items():
                        taken.setdefault(f"{name}{key}", []).append(value)
                for name, call in (("products", self._products), ("head", self._head), ("drawn", self._drawn)):
                    taken.setdefault(name, []).append(call())
                between()
        finally:
            await self._engine.aclose()
        return {name: median(values) for name, values in taken.items()}

    async def _step(self, sampling: Sampling) -> dict[str, float]:
        """Seconds of a step, and the share of them outside of the device's program."""
        before = self._engine.statistics()["decode_s"]
        started = time.perf_counter()
        await _ask(self._engine, self.slots, sampling, NEW)
        wall = time.perf_counter() - started
        return {"": wall / NEW, "_outside": 1 - (self._engine.statistics()["decode_s"] - before) / wall}


async def _ask(engine: SlotEngine, slots: int, sampling: Sampling, count: int) -> None:
    rng = np.random.default_rng(slots)
    prompts = rng.integers(1000, 40000, (slots, PROMPT)).astype(np.int32)
    requests = [GenerateRequest(prompt, sampling, seed, count) for seed, prompt in enumerate(prompts)]
    await asyncio.gather(*map(engine.generate, requests))


def weight_bytes(policy: Policy) -> int:
    """Bytes that a step reads of the weights."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(policy.params))


def bandwidth() -> float:
    """Bytes a second that this machine's memory gives a program that reads and writes in place: the best of some."""
    program = jax.jit(lambda x: x + 1.0, donate_argnums=0)
    values = jax.block_until_ready(program(jnp.zeros(BANDWIDTH_BYTES // 4, jnp.float32)))
    seconds = []
    for _ in range(8):
        started = time.perf_counter()
        values = jax.block_until_ready(program(values))
        seconds.append(time.perf_counter() - started)
    return 2 * BANDWIDTH_BYTES / min(seconds)


def _timed(call: Callable[[], Any]) -> Callable[[], float]:
    """`call`, already compiled, giving the seconds it takes."""
    jax.block_until_ready(call())

    def timed() -> float:
        started = time.perf_counter()
        jax.block_until_ready(call())
        return time.perf_counter() - started

    return timed


def _products(policy: Policy, slots: int) -> Callable[[], Any]:
    """The matrix products of a step with weights, and nothing else that can be left out: seconds are of one step."""
    config: Any = policy.model.config  # type: ignore[attr-defined]
    width = config.width

    def step(_: Any, state: Any) -> Any:
        params, x = state
        for layer in params["layers"].values():
            heads, mlp = layer["attention"], layer["mlp"]
            q, k, v = x @ heads["q"], x @ heads["k"], x @ heads["v"]
            x = (q.at[:, : k.shape[1]].add(k + v)) @ heads["o"]
            x = ((x @ mlp["gate"]) * (x @ mlp["up"])) @ mlp["down"]
        best = (x @ params["embedding"].T).T.max(axis=0)
        return params, x * 1e-3 + best[:, None] * 1e-9

    program = jax.jit(lambda params, x: lax.fori_loop(0, REPEATS, step, (params, x))[1])
    x = jnp.ones((slots, width), jnp.float32)
    return lambda: program(policy.params, x)


def _head(policy: Policy, slots: int, settings: Settings | None) -> Callable[[], Any]:
    """The product that gives logits, with a draw from them or only their maximum."""
    model: Any = policy.model
    variates = jnp.full((slots, 2), 0.5, jnp.float32)

    def both(params: Any, hidden: Any, how: Any) -> Any:
        logits = model.logits(params, hidden)
        return draw(logits, variates, how) if how is not None else logits.T.max(axis=0)

    program = jax.jit(both)
    hidden = jnp.ones((slots, model.config.width), jnp.float32)
    return lambda: program(policy.params, hidden, settings)


def _settings(slots: int) -> Settings:
    one = jnp.ones(slots, jnp.float32)
    return Settings(jnp.ones((slots, 2), jnp.uint32), one, jnp.zeros(slots, jnp.int32), one, 0 * one)


def report(found: dict[str, float], slots: int, floor_s: float) -> dict[str, float]:
    """What the table says of one slot count.

    Args:
        found: what `Decoding.measure` gave.
        floor_s: seconds that reading the weights once takes.
    """
    roofline = max(floor_s, found["products"] / REPEATS)
    drawing = max(0.0, found["drawn"] - found["head"]) / found["sampled"]
    return {
        "slots": slots,
        "tokens_per_s": slots / found["sampled"],
        "greedy_tokens_per_s": slots / found["greedy"],
        "top_p_tokens_per_s": slots / found["top_p"],
        "roofline_tokens_per_s": slots / roofline,
        "roofline_share": roofline / found["sampled"],
        "overhead_share": found["sampled_outside"] + drawing,
    }
