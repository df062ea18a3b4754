"""google-tunix beside us: run in a virtual environment that has it, with "cold" or "warm" and a number of passes.

Sixty-four three-turn episodes in groups of eight, all at once, of a random policy of a million weights, through its
own rollout orchestrator and in-process sampler. "cold" leaves each turn the budget that is left, as it comes;
"warm" gives each turn 32 tokens. Prints one line of JSON: the seconds of each pass, the first one cold.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from dataclasses import replace
from importlib.metadata import version
from typing import Any

os.environ.update(JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen3 import model as qwen3
from tunix.rl import rl_cluster
from tunix.rl.agentic import agentic_grpo_learner
from tunix.rl.agentic.environments import base_environment
from tunix.rl.agentic.parser.chat_template_parser import parser
from tunix.rl.rollout import base_rollout

VOCABULARY, TURNS, GROUPS, GROUP, CAP, BUDGET, PROMPT = 512, 3, 8, 8, 32, 256, 64
STOPS = (0, 1, *range(130, 145))  # one token in thirty, where each turn has the whole budget that is left
BEYOND = 0x4000  # ids without a character of their own are characters from here on


class Characters:
    """A character is an id; the two turn markers are one id each."""

    bos_token, eos_token, pad_token = "", "<|im_end|>", ""
    markers = ("<|im_start|>", "<|im_end|>")

    def encode(self, text: str, **_: Any) -> list[int]:
        for index, marker in enumerate(self.markers):
            text = text.replace(marker, chr(BEYOND + 3 + index))
        codes = [ord(character) for character in text]
        return [code - BEYOND if code >= BEYOND else min(code, VOCABULARY - 1) for code in codes]

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(i) if 32 <= i < 127 else chr(BEYOND + i) for i in map(int, ids))

    def bos_id(self) -> int:
        return 0

    def eos_id(self) -> int:
        return 1

    def pad_id(self) -> int:
        return 0


class Letters(base_environment.BaseTaskEnv):
    """Text for three turns; what scores is the share of letters. No latency."""

    def __init__(self, task: Any = None, **options: Any) -> None:
        super().__init__(task, max_steps=TURNS, **options)

    def _initial_observation(self) -> str:
        return str(np.ravel(self.task["prompts"])[0])

    def _step_impl(self, action: Any) -> Any:
        text = str(getattr(action, "action", action) or "")
        share = sum(c.isascii() and c.isalpha() for c in text) / max(1, len(text))
        return base_environment.EnvStepResult(
            observation=f"turn {self.step_count} ok", reward=share / TURNS, done=self.step_count >= TURNS, info={}
        )


def make_cluster(capped: bool) -> Any:
    config = qwen3.ModelConfig(
        num_layers=4,
        vocab_size=VOCABULARY,
        embed_dim=128,
        hidden_dim=512,
        num_heads=4,
        head_dim=32,
        num_kv_heads=2,
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    model = qwen3.Qwen3(config, rngs=nnx.Rngs(params=0))
    embedding = model.embedder.input_embedding
    embedding[...] = embedding[...] * 0.02  # flat enough that any token comes
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    rollout = base_rollout.RolloutConfig(
        max_prompt_length=PROMPT,
        max_tokens_to_generate=BUDGET,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        return_logprobs=True,
        eos_tokens=list(STOPS[:2] if capped else STOPS),
        kv_cache_size=256 + CAP if capped else 512 + PROMPT,
    )
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.adamw(1e-4),
        eval_every_n_steps=10_000,
        max_steps=1000,
        mini_batch_size=GROUPS,
        train_micro_batch_size=GROUPS,
    )
    roles = rl_cluster.Role
    return rl_cluster.RLCluster(
        actor=model,
        reference=None,
        tokenizer=Characters(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh={role: mesh for role in (roles.ACTOR, roles.REFERENCE, roles.ROLLOUT)},
            rollout_engine="vanilla",
            offload_to_cpu=False,
            training_config=training,
            rollout_config=rollout,
        ),
    )


def make_learner(cluster: Any, capped: bool) -> Any:
    calling, generate = threading.local(), cluster.rollout.generate

    def seeded(prompts: Any, config: Any, **options: Any) -> Any:
        # Its sampler draws with one constant key, so that all members of a group would say the same.
        return generate(prompts, replace(config, seed=jax.random.PRNGKey(calling.seed)), **options)

    cluster.rollout.generate = seeded

    class Learner(agentic_grpo_learner.GRPOLearner):
        def _model_call(self, chats: Any, env: Any = None, max_generation_steps: Any = None) -> Any:
            place = env.extra_kwargs
            calling.seed = (place["group_id"] * GROUP + place["pair_index"]) * TURNS + env.step_count
            return super()._model_call(chats, env, max_generation_steps=CAP if capped else max_generation_steps)

    config = agentic_grpo_learner.GRPOConfig(
        num_generations=GROUP,
        num_iterations=1,
        beta=0.0,
        max_response_length=BUDGET,
        system_prompt="",
        max_concurrency=GROUPS * GROUP,
        off_policy_steps=0,
        episode_timeout=1800.0,
    )
    return Learner(
        rl_cluster=cluster,
        algo_config=config,
        reward_fns=None,
        chat_parser=parser.QwenChatTemplateParser(Characters(), enable_thinking=True),
        env_class=Letters,
        env_kwargs={},
    )


def play(learner: Any) -> int:
    """All episodes once; how many there were."""
    learner._full_batch_size = GROUPS
    prompts = [{"prompts": np.array([f"task {group:03d}: say something"])} for group in range(GROUPS)]

    async def consume() -> int:
        orchestrator, count = learner._build_orchestrator(), 0
        producing = learner._orchestrator_producer(orchestrator, prompts, num_generations=GROUP, collect_mode="Token")
        async for group in producing:
            count += len(group)
        return count

    return asyncio.run_coroutine_threadsafe(consume(), learner.loop).result(timeout=900)


def main() -> None:
    capped, passes = sys.argv[1] == "warm", int(sys.argv[2])
    started, seconds = time.perf_counter(), []
    learner = make_learner(make_cluster(capped), capped)
    for _ in range(passes):
        assert play(learner) == GROUPS * GROUP
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
    told = {"episodes": GROUPS * GROUP, "seconds": seconds, "version": version("google-tunix")}
    print(json.dumps(told), flush=True)
    os._exit(0)  # its loop's thread never ends by itself


if __name__ == "__main__":
    main()
