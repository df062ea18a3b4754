"""Makes the weights of `models/nano`: supervised training on what careless teachers do.

    python plugins/models/scripts/make_nano.py --out plugins/models/tunix_models/data/nano

Seeded; a few minutes on two cores. The policy it leaves has the teachers' bad habits, and knows the
right ways as well: reinforcement has something to find.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from teachers import TEACHERS

from tunix_core.config import SuiteConfig, TrainerConfig
from tunix_core.contracts import Completion, Policy
from tunix_core.envs import make_opener
from tunix_core.models import save_policy
from tunix_core.plugins import Hub
from tunix_core.rollout import Conversation
from tunix_core.run.build import Bench, prepare
from tunix_core.run.memory import keep_freed_memory
from tunix_core.run.policies import open_model
from tunix_core.specs import load_target
from tunix_core.trainer import Trainer
from tunix_core.types import Group, SampleId, Score, Task, Trajectory, derive_seed

PER_STEP = {"math/arithmetic": 128, "math/calculator": 24, "games/frozen-lake": 12}
CAREFUL = {"math/arithmetic": 0.42, "math/calculator": 0.35, "games/frozen-lake": 0.45}
HABITS = 0.2  # the last share of the steps, in which the teachers are careless


@dataclass
class Classroom:
    """One suite, its teacher, and its pupils' transcripts."""

    bench: Bench
    policy: Policy
    seed: int
    careful: float = 1.0

    def __post_init__(self) -> None:
        self.env = self.bench.spec.id
        self.tasks = self.bench.tasks("train", self.seed)
        self.opener = make_opener(
            self.bench.spec, load_target, options=self.bench.options, max_steps=self.bench.max_turns
        )

    async def transcript(self, index: int) -> Trajectory:
        """One episode as the teacher plays it, its turns marked as sampled."""
        task = self.tasks.get(index)
        careful = np.random.default_rng([self.seed, index, 77]).random() < self.careful
        env = await self.opener.open(task)
        try:
            return await self._play(env, task, index, bool(careful))
        finally:
            await env.close()

    async def _play(self, env, task: Task, index: int, careful: bool) -> Trajectory:
        opening = await env.reset(derive_seed("nano", self.seed, index))
        talk = Conversation(self.policy.chat, opening.messages, opening.tools)
        heard, done = opening.messages[-1], False
        while not done and talk.turn < self.bench.max_turns:
            ids = self.policy.chat.say(TEACHERS[self.env](task, heard, careful))
            none = np.zeros(len(ids), np.float32)
            action = talk.hear(Completion(ids, none, none, np.zeros(len(ids), np.int32), "stop"))
            result = await env.step(action)
            done = result.done
            if not done:
                talk.say(result.observation)
                heard = result.observation[-1]
        return Trajectory(
            SampleId(self.env, index, 0), self.env, task, 0, tuple(talk.spans), turns=talk.turn, score=Score(1.0)
        )


async def teach(rooms: list[Classroom], trainer: Trainer, steps: int) -> None:
    started = time.monotonic()
    for step in range(steps):
        for room in rooms:
            room.careful = CAREFUL[room.env] if step >= steps * (1 - HABITS) else 1.0
            count = PER_STEP[room.env]
            said = await asyncio.gather(*(room.transcript(step * count + i) for i in range(count)))
            for one in said:
                trainer.accumulate(Group(room.env, one.id.group, one.task, (one,)))
        metrics = trainer.apply()
        if step % 20 == 19:
            print(f"step {step + 1}  loss {metrics['loss']:.4f}  {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    given = parser.parse_args()
    keep_freed_memory()

    hub = Hub.load()
    policy = open_model("models/nano", hub, {"random": given.seed})
    sft = hub.load_object("algorithms", "algorithms/sft")()
    config = TrainerConfig(
        learning_rate=given.learning_rate, schedule="cosine", warmup_steps=30, rows=4, row_tokens=256
    )
    trainer = Trainer(policy.model, policy.params, dict.fromkeys(TEACHERS, sft), config, steps=given.steps)

    async def run() -> None:
        rooms = [Classroom(prepare(SuiteConfig(env=env, name=env), hub), policy, given.seed) for env in TEACHERS]
        await teach(rooms, trainer, given.steps)
        for room in rooms:
            await room.opener.aclose()

    asyncio.run(run())
    save_policy(replace(policy, params=trainer.weights().params), given.out, dtype="bfloat16")


if __name__ == "__main__":
    main()
