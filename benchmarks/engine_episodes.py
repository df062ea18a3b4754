"""Sixty-four three-turn episodes of a policy of a million weights, at once: `python -m benchmarks.engine_episodes`.

Prints one line of JSON: seconds of the first pass, from building the engine to the last episode, and of the
following ones; prompt tokens computed and new; tokens sampled. Weights are in memory and nothing is compiled
before the first pass; no compilation cache is kept. The engine has a worker for each core, two at most: a step of so
small a model uses one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from typing import Any

import jax

from tunix_core.config import EngineConfig, RewardConfig
from tunix_core.contracts import Policy, RolloutRequest, Sampling
from tunix_core.engine import SlotEngine, make_engine
from tunix_core.envs import BaseTaskEnv, make_opener
from tunix_core.models import DecoderConfig, DecoderModel
from tunix_core.rewards import make_scorer
from tunix_core.rollout import Suite, run_episode
from tunix_core.run.build import QUIET
from tunix_core.specs import EnvSpec, load_target
from tunix_core.testing.chat import END, FakeChatFormat, FakeTokenizer
from tunix_core.types import SampleId, StepResult, Task, Trajectory
from tunix_core.weights import WeightStore

GROUPS, GROUP, TURNS, TOKENS = 8, 8, 3, 32
MODEL = DecoderConfig(
    vocab_size=512,
    width=128,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    mlp_width=512,
    max_positions=512,
    tie_embeddings=True,
    qk_norm=True,
)
WORKERS = min(2, os.cpu_count() or 1)
ENGINE = EngineConfig(slots=64, workers=WORKERS, max_context=256, prefill_chunk=16, decode_steps=8)


class Letters(BaseTaskEnv):
    """Text for `TURNS` turns; what scores is the share of letters. No latency."""

    async def _initial_observation(self) -> str:
        return str(self.task["text"])

    async def _step_impl(self, action: str) -> StepResult:
        share = sum(c.isascii() and c.isalpha() for c in action) / max(1, len(action))
        over = self.step_count >= TURNS
        return StepResult(f"turn {self.step_count} ok", share / TURNS, terminated=over)


class Chat(FakeChatFormat):
    """Two stop tokens of 512, so that most turns take their whole budget."""

    stop_tokens = (END, END + 1)


def make_policy() -> Policy:
    model = DecoderModel(MODEL)
    params = model.init(0)
    params["embedding"] = params["embedding"] * 0.02  # flat enough that any token comes
    return Policy("benchmarks/policy", model, jax.device_put(params), FakeTokenizer(), Chat())


def make_suite(policy: Policy, engine: SlotEngine) -> Suite:
    spec = EnvSpec("benchmarks/letters", f"{__name__}:Letters", f"{__name__}:Letters", max_turns=TURNS)
    opener = make_opener(spec, lambda target: Letters if target == spec.target else load_target(target))
    scorer = make_scorer((RewardConfig("env"),), load_target, range_of_env=(0.0, 1.0), timeouts=spec.timeouts)
    return Suite("letters", spec.id, opener, scorer, engine, policy.chat, QUIET)


async def play(suite: Suite, turn: int) -> list[Trajectory]:
    """All episodes at once; `turn` makes their tasks and draws new."""
    requests = [
        RolloutRequest(
            id=SampleId("letters", turn * GROUPS + group, sample),
            task=Task(f"{turn}.{group}", {"text": f"task {turn:03d}.{group}: say something"}),
            seed=group,
            run_seed=turn,
            sampling=Sampling(max_tokens=TOKENS),
            max_turns=TURNS,
        )
        for group in range(GROUPS)
        for sample in range(GROUP)
    ]
    return await asyncio.gather(*(run_episode(request, suite) for request in requests))


async def measure(passes: int) -> dict[str, Any]:
    policy, seconds = make_policy(), []
    started = time.perf_counter()
    engine = make_engine(policy, WeightStore(0, policy.params), ENGINE, deterministic=False)
    suite = make_suite(policy, engine)
    await engine.start()
    compiled_s = time.perf_counter() - started
    played: list[Trajectory] = []
    for turn in range(1 + passes):
        played = await play(suite, turn)
        seconds.append(time.perf_counter() - started)
        assert all(episode.score is not None and episode.turns == TURNS for episode in played)
        started = time.perf_counter()
    found = engine.statistics()
    await suite.opener.aclose()
    await engine.aclose()
    return {
        "episodes": len(played),
        "compile_s": compiled_s,
        "cold_s": seconds[0],
        "warm_s": seconds[1:],
        "programs": found["programs"],
        "workers": WORKERS,
        "tokens": sum(episode.sampled_tokens for episode in played),
        "new_tokens": sum(map(new_tokens, played)),
        "prefill_tokens": found["prefill_tokens"] / (1 + passes),
    }


def new_tokens(episode: Trajectory) -> int:
    """Prompt tokens that nobody had said before: a group's opening is its first member's."""
    forced = [len(span) for span in episode.spans if not span.sampled]
    return sum(forced if episode.id.sample == 0 else forced[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=5)
    print(json.dumps(asyncio.run(measure(parser.parse_args().passes))))


if __name__ == "__main__":
    main()
