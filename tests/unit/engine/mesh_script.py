"""Run in a process of its own with eight devices: a sharded engine beside one on a single device."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import jax
import numpy as np

from tunix_core.config import EngineConfig
from tunix_core.contracts import Completion, GenerateRequest, Policy, Sampling
from tunix_core.engine import make_engine
from tunix_core.models import DecoderConfig, DecoderModel
from tunix_core.weights import WeightStore

MODEL = DecoderModel(
    DecoderConfig(vocab_size=64, width=24, layers=1, heads=4, kv_heads=2, head_dim=8, mlp_width=48, max_positions=160)
)
CONFIG = EngineConfig(slots=8, max_context=160, prefill_chunk=16, decode_steps=4)
AXES = {"data": 2, "fsdp": 2, "tensor": 2}


def requests() -> list[GenerateRequest]:
    """Greedy and tempered, some sharing their beginning, some reaching the second piece of the cache."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 64, 40)
    made = []
    for i, length in enumerate((1, 7, 33, 100, 120, 12, 50, 50, 5, 130)):
        prompt = np.concatenate([shared, rng.integers(0, 64, length)]).astype(np.int32)[-min(length + 40, 140) :]
        sampling = Sampling(temperature=0.0 if i % 2 else 1.0)
        made.append(GenerateRequest(prompt, sampling, seed=i, max_tokens=16))
    return made


async def answers(mesh: jax.sharding.Mesh | None) -> list[Completion]:
    params = MODEL.init(0)
    policy = Policy("tests/policy", MODEL, params, None, None)  # type: ignore[arg-type]
    policy = replace(policy, tokenizer=Silent())
    engine = make_engine(policy, WeightStore(0, params), CONFIG, deterministic=True, mesh=mesh)
    await engine.start()
    try:
        return await asyncio.gather(*map(engine.generate, requests()))
    finally:
        await engine.aclose()


class Silent:
    """A tokenizer that is never asked: no request has stop texts."""

    def decode(self, tokens: object) -> str:
        raise NotImplementedError


def main() -> None:
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES))
    alone, sharded = asyncio.run(answers(None)), asyncio.run(answers(mesh))
    greedy = [request.sampling.temperature == 0 for request in requests()]
    told = {
        "devices": len(jax.devices()),
        "same": [a.tokens.tolist() == b.tokens.tolist() for a, b in zip(alone, sharded, strict=True)],
        "greedy": greedy,
        "apart": [
            float(np.abs(a.full_logprobs - b.full_logprobs).max())
            for a, b in zip(alone, sharded, strict=True)
            if len(a.tokens) == len(b.tokens)
        ],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
