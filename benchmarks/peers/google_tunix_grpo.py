"""A whole GRPO step of google-tunix on the CPU: run in a virtual environment that has it, with a number of layers.

64 samples, 8 a prompt; prompts of 64 tokens, completions of 32. The model has SmolLM2-135M's shape and random weights,
in float32. Prints a line of JSON once a second step is over, and after each that follows: the seconds of each step so
far, the first one with what is compiled.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

os.environ.update(JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.llama3 import model as llama3
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

VOCABULARY, SAMPLES, GROUP, PROMPT, COMPLETION, STEPS = 49_152, 64, 8, 64, 32, 5
NEVER = VOCABULARY - 1  # ends a completion, if it is ever drawn


class Words:
    """The text "7 12" is the ids 7 and 12."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Any, **_: Any) -> str:
        return " ".join(str(int(i)) for i in ids)

    def bos_id(self) -> int:
        return 0

    def eos_id(self) -> int:
        return NEVER

    def pad_id(self) -> int:
        return 0

    def dedup_bos_ids(self, ids: list[int]) -> list[int]:
        return ids


def make_cluster(layers: int) -> rl_cluster.RLCluster:
    config = llama3.ModelConfig(
        num_layers=layers,
        vocab_size=VOCABULARY,
        embed_dim=576,
        hidden_dim=1536,
        num_heads=9,
        head_dim=64,
        num_kv_heads=3,
        rope_theta=100_000,
        norm_eps=1e-5,
        weight_tying=True,
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    with mesh:
        model = llama3.Llama3(config, rngs=nnx.Rngs(params=0))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    cluster_config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh),
        rollout_engine="vanilla",
        offload_to_cpu=False,
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(1e-6),
            eval_every_n_steps=10_000,
            max_steps=STEPS,
            mini_batch_size=SAMPLES // GROUP,
            train_micro_batch_size=SAMPLES // GROUP,
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_prompt_length=PROMPT,
            max_tokens_to_generate=COMPLETION,
            kv_cache_size=PROMPT + COMPLETION + 1,
            temperature=1.0,
            eos_tokens=[NEVER],
        ),
    )
    return rl_cluster.RLCluster(actor=model, reference=None, tokenizer=Words(), cluster_config=cluster_config)


def batches() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        ids = rng.integers(1, NEVER, (SAMPLES // GROUP, PROMPT))
        yield {"prompts": np.array([" ".join(map(str, row)) for row in ids])}


def main(layers: int) -> None:
    begun: list[float] = []  # a step lies between two rewards

    def reward(prompts: Any, completions: Any, **_: Any) -> list[float]:
        begun.append(time.perf_counter())
        seconds = [after - before for before, after in pairwise(begun)]
        if len(seconds) > 1:
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps({"seconds": seconds, "samples": SAMPLES, "peak_mb": peak_mb}), flush=True)
        return np.random.default_rng(len(begun)).random(len(completions)).tolist()

    config = grpo_learner.GRPOConfig(num_generations=GROUP, num_iterations=1, beta=0.0)
    grpo_learner.GRPOLearner(rl_cluster=make_cluster(layers), algo_config=config, reward_fns=reward).train(batches())


if __name__ == "__main__":
    main(int(sys.argv[1]))
