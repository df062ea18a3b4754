"""Makes the weights of `models/nano`: supervised training on what careless teachers do.

    python plugins/models/scripts/make_nano.py --out plugins/models/tunix_models/data/nano

Seeded; a quarter of an hour on two cores. The policy it leaves has the teachers' bad habits, and knows the
right ways as well: reinforcement has something to find.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
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
from tunix_core.run.policies import open_model
from tunix_core.specs import load_target
from tunix_core.trainer import Trainer
from tunix_core.types import Group, SampleId, Score, Task, Trajectory, derive_seed

PER_STEP = {"math/arithmetic": 160, "math/calculator": 20, "games/frozen-lake": 10}
OPTIONS = {"math/arithmetic": {"levels": [1, 1, 2, 2, 3]}}
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
    """Takes the steps; the next step's transcripts are played while this one's are learned from."""
    started, coming = time.monotonic(), await lesson(rooms, 0, steps)
    for step in range(steps):
        learning = asyncio.create_task(asyncio.to_thread(learn, trainer, coming))
        coming = await lesson(rooms, step + 1, steps)
        metrics = await learning
        if step % 20 == 19:
            losses = "  ".join(
                f"{name.partition('@')[2]} {metrics[name]:.3f}" for name in sorted(metrics) if "@" in name
            )
            print(
                f"step {step + 1}  loss {metrics['loss']:.4f}  {losses}  {time.monotonic() - started:.0f} s", flush=True
            )


async def lesson(rooms: list[Classroom], step: int, steps: int) -> list[Trajectory]:
    """The transcripts of one step; the last lessons are careless."""
    said: list[Trajectory] = []
    for room in rooms:
        count = PER_STEP[room.env]
        room.careful = CAREFUL[room.env] if step >= steps * (1 - HABITS) else 1.0
        said += await asyncio.gather(*(room.transcript(step * count + i) for i in range(count)))
    return said


def learn(trainer: Trainer, said: list[Trajectory]) -> Mapping[str, float]:
    for one in said:
        trainer.accumulate(Group(one.env, one.id.group, one.task, (one,)))
    return trainer.apply()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    given = parser.parse_args()

    hub = Hub.load()
    policy = open_model("models/nano", hub, {"random": given.seed})
    sft = {env: hub.load_object("algorithms", "algorithms/sft")() for env in TEACHERS}  # each its own loss
    config = TrainerConfig(
        learning_rate=given.learning_rate, schedule="cosine", warmup_steps=30, rows=4, row_tokens=256
    )
    trainer = Trainer(policy.model, policy.params, sft, config, steps=given.steps)

    async def run() -> None:
        rooms = [
            Classroom(prepare(SuiteConfig(env=env, name=env, options=OPTIONS.get(env, {})), hub), policy, given.seed)
            for env in TEACHERS
        ]
        await teach(rooms, trainer, given.steps)
        for room in rooms:
            await room.opener.aclose()

    asyncio.run(run())
    save_policy(replace(policy, params=trainer.weights().params), given.out, dtype="bfloat16")


if __name__ == "__main__":
    main()
