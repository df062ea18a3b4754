"""What is measured of the training step, each scenario as a function of the number of layers.

The model has SmolLM2-135M's shape and random weights, in float32: no time depends on their values.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tunix_core.algorithms import clip_objective, normalised, policy_gradient
from tunix_core.config import EngineConfig, TrainerConfig
from tunix_core.contracts import GenerateRequest, Policy, Sampling
from tunix_core.engine import make_engine
from tunix_core.models.config import DecoderConfig
from tunix_core.models.decoder import DecoderModel
from tunix_core.trainer import Packer, Sample, Trainer
from tunix_core.trainer.lanes import arrays_of
from tunix_core.trainer.parts import make_parts
from tunix_core.trainer.steps import make_accumulate
from tunix_core.types import Group, Row, SampleId, Score, Task, TokenSpan, Trajectory
from tunix_core.weights import WeightStore

VOCABULARY, WIDTH, MLP_WIDTH = 49_152, 576, 1536
GRPO = policy_gradient("bench/grpo", normalised, clip_objective(0.2, 0.2))
ROUNDS = 5


class Ids:
    """No text: nothing here reads it."""

    vocab_size = VOCABULARY

    def encode(self, text: str) -> np.ndarray:
        return np.array(text.split(), np.int32)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        return " ".join(map(str, tokens))


def smollm2(layers: int) -> DecoderModel:
    sizes = VOCABULARY, WIDTH, layers, 9, 3, 64, MLP_WIDTH, 8192
    return DecoderModel(DecoderConfig(*sizes, rope_theta=1e5, tie_embeddings=True))


def nano() -> DecoderModel:
    return DecoderModel(DecoderConfig(512, 128, 4, 4, 2, 32, 384, 1024))


def gemm(layers: int) -> dict[str, float]:
    """Packed rows of 1,024 tokens of segments of 64 to 192, all but each first token trained, between matrix
    products of the model's most common shape, the same on both sides."""
    model, rng = smollm2(layers), np.random.default_rng(0)
    params = model.init(0)
    packer, batch, lengths = Packer(4, 1024), None, list[int]()
    while batch is None:
        lengths.append(int(rng.integers(64, 193)))
        batch = packer.add(Sample((_row(rng, lengths[-1]),), float(rng.normal()), 1.0))
    parts, arrays = make_parts(params, "model"), arrays_of(batch, 0)
    functions = make_accumulate(model, GRPO, parts)
    sums = functions.zeros(arrays)
    shapes = ((4096, WIDTH), (WIDTH, MLP_WIDTH), (MLP_WIDTH, WIDTH))
    a, b, c = (jnp.asarray(rng.standard_normal(shape, np.float32) * shape[0] ** -0.5) for shape in shapes)
    # In one program: results of separate calls would each be paid for with new pages of memory.
    products = jax.jit(lambda a, b, c: lax.fori_loop(0, 12, lambda _, a: (a @ b) @ c, a))
    times = list[float]()

    def rate() -> float:
        return 12 * 4 * a.size * b.shape[1] / _seconds(lambda: products(a, b, c))

    sums = jax.block_until_ready(functions.add(sums, parts, arrays))
    products(a, b, c).block_until_ready()
    rates = [rate()]
    for _ in range(ROUNDS):
        started = time.perf_counter()
        sums = jax.block_until_ready(functions.add(sums, parts, arrays))
        times.append(time.perf_counter() - started)
        rates.append(rate())
    starts = np.flatnonzero((batch.positions == 0) & (batch.segment_ids > 0))
    squares = sum(int(n) ** 2 for n in np.ravel(batch.seen_until)[starts] - starts % 1024)
    tokens = int((batch.segment_ids > 0).sum())
    needed = 6 * _count(params) * tokens + 12 * layers * WIDTH * squares / 2
    beside = [(before + after) / 2 for before, after in pairwise(rates)]
    return {
        "gemm_share": statistics.median(needed / t / r for t, r in zip(times, beside, strict=True)),
        "gemm_gflops": statistics.median(rates) / 1e9,
        "needed_gflops": needed / 1e9,
        "micro_batch_s": statistics.median(times),
        "train_tokens_per_s": tokens / statistics.median(times),
    }


def prefix(layers: int) -> dict[str, float]:
    """Groups of 8, prompt 256, responses of 64: the same step with and without sharing, in turns."""
    model = smollm2(layers)
    params, groups = model.init(0), [_group(i, 8, 256, 64) for i in range(2)]
    steps = {
        share: _stepper(model, params, groups, rows=rows, row_tokens=tokens, share_prefix=share)
        for share, rows, tokens in ((True, 2, 768), (False, 4, 1280))
    }
    times = _in_turns(list(steps.values()), rounds=3)
    shared, alone = (len(groups) / statistics.median(each) for each in times)
    ratios = [b / a for a, b in zip(*times, strict=True)]
    return {
        "prefix_speedup": statistics.median(ratios),
        "groups_per_s_shared": shared,
        "groups_per_s_alone": alone,
    }


def dispatch(layers: int) -> dict[str, float]:
    """Nano: the part of a step of 24 groups of 8 that is not the jitted functions' own."""
    model = nano()
    params, groups = model.init(0), [_group(i, 8, 48, 24, vocabulary=512) for i in range(24)]
    config = TrainerConfig(rows=8, row_tokens=512)
    trainer = Trainer(model, params, {"s": GRPO}, config, steps=100)
    inside, lane = list[float](), next(iter(trainer._lanes.values()))

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            started = time.perf_counter()
            found = jax.block_until_ready(function(*given))
            inside.append(time.perf_counter() - started)
            return found

        return run

    lane.functions = lane.functions._replace(add=timed(lane.functions.add))
    trainer._update = timed(trainer._update)
    shares = []
    for _ in range(ROUNDS + 1):
        inside.clear()
        whole = _seconds(partial(_train, trainer, groups))
        shares.append(1 - sum(inside) / whole)
    return {"dispatch_share_nano": statistics.median(shares[1:]), "nano_step_s": whole}


def step(layers: int) -> dict[str, float]:
    """A whole GRPO step: 8 prompts of 64 tokens, 8 samples of 32 each, sampled, then one update."""
    model = smollm2(layers)
    params = model.init(0)
    trainer = Trainer(model, params, {"s": GRPO}, TrainerConfig(rows=4, row_tokens=640), steps=100)
    trainer.warm_up()
    return asyncio.run(_whole_steps(model, params, trainer))


async def _whole_steps(model: DecoderModel, params: Any, trainer: Trainer) -> dict[str, float]:
    store = WeightStore(0, params)
    policy = Policy("bench/smollm2", model, params, Ids(), None)  # type: ignore[arg-type]
    config = EngineConfig(slots=64, max_context=96, prefill_chunk=64, decode_steps=8)
    engine = make_engine(policy, store, config, deterministic=False)
    await engine.start()
    sampling, training = list[float](), list[float]()
    try:
        for at in range(ROUNDS - 1):
            started = time.perf_counter()
            groups = await asyncio.gather(*(_sampled(engine, at * 8 + i) for i in range(8)))
            sampling.append(time.perf_counter() - started)
            training.append(_seconds(partial(_train, trainer, groups)))
            store.publish(*trainer.weights())
    finally:
        await engine.aclose()
    seconds = [a + b for a, b in zip(sampling, training, strict=True)][1:]
    return {
        "samples_per_s": 64 / statistics.median(seconds),
        "sampling_s": statistics.median(sampling[1:]),
        "training_s": statistics.median(training[1:]),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def _sampled(engine: Any, index: int) -> Group:
    rng = np.random.default_rng(index)
    prompt = rng.integers(0, VOCABULARY, 64).astype(np.int32)
    how = Sampling(max_tokens=32)
    asked = [engine.generate(GenerateRequest(prompt, how, index * 64 + i, 32)) for i in range(8)]
    spans = [TokenSpan(c.tokens, True, c.logprobs, c.versions) for c in await asyncio.gather(*asked)]
    return _made(index, prompt, spans, rng)


SCENARIOS: dict[str, Callable[[int], dict[str, float]]] = {
    "gemm": gemm,
    "prefix": prefix,
    "nano": dispatch,
    "step": step,
}


def _stepper(model: DecoderModel, params: Any, groups: Sequence[Group], **config: Any) -> Callable[[], Any]:
    trainer = Trainer(model, params, {"s": GRPO}, TrainerConfig(**config), steps=100)
    trainer.warm_up()
    return partial(_train, trainer, groups)


def _train(trainer: Trainer, groups: Sequence[Group]) -> None:
    for group in groups:
        trainer.accumulate(group)
    trainer.apply()
    jax.block_until_ready(trainer.weights().params)


def _in_turns(functions: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, each in zip(functions, times, strict=True):
            each.append(_seconds(function))
    return times


def _seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - started


def _group(index: int, size: int, prompt: int, response: int, vocabulary: int = VOCABULARY) -> Group:
    rng = np.random.default_rng(index)
    spans = []
    for _ in range(size):
        tokens = rng.integers(0, vocabulary, response).astype(np.int32)
        spans.append(TokenSpan(tokens, True, np.full(response, -5, np.float32), np.zeros(response, np.int32)))
    return _made(index, rng.integers(0, vocabulary, prompt).astype(np.int32), spans, rng)


def _made(index: int, prompt: np.ndarray, spans: Sequence[TokenSpan], rng: np.random.Generator) -> Group:
    """The samples of a prompt, with scores that differ."""
    task = Task(f"t{index}")
    members = [
        Trajectory(
            SampleId("s", index, i), "bench/env", task, 0, (TokenSpan.forced(prompt), span), score=Score(rng.random())
        )
        for i, span in enumerate(spans)
    ]
    return Group("s", index, task, tuple(members))


def _row(rng: np.random.Generator, length: int) -> Row:
    mask = np.ones(length, np.float32)
    mask[0] = 0
    tokens, zeros = rng.integers(0, VOCABULARY, length).astype(np.int32), np.zeros(length, np.int32)
    return Row(tokens, mask, np.full(length, -5, np.float32), zeros, zeros)


def _count(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
