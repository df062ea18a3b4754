"""Run by test_hosts.py: `train PROCESS PROCESSES PORT` trains as one of several; prints what the first one sees."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from tunix_core.algorithms import centred, policy_gradient, ratio_objective
from tunix_core.config import TrainerConfig
from tunix_core.models import AXES_OF_MESH, DecoderConfig, DecoderModel, MeshLayout
from tunix_core.run.hosts import Hosts, follow, join, leading
from tunix_core.trainer import Trainer
from tunix_core.types import Group, SampleId, Score, Task, TokenSpan, Trajectory

process, processes, port = map(int, sys.argv[1:])
hosts = Hosts(f"127.0.0.1:{port}", processes, process)
if processes > 1:
    join(hosts)
model = DecoderModel(DecoderConfig(32, 16, 1, 2, 1, 8, 24, 32))
config = TrainerConfig(rows=2, row_tokens=16, learning_rate=0.1, optimizer="sgd", warn_disagreement=None)


def group(seed: int) -> Group:
    rng = np.random.default_rng(seed)
    members = []
    for i in range(4):
        prompt, answer = (rng.integers(0, 32, 4).astype(np.int32) for _ in range(2))
        sampled = TokenSpan(answer, True, -rng.uniform(1, 4, 4).astype(np.float32), np.zeros(4, np.int32))
        named = SampleId("s", seed, i)
        members.append(Trajectory(named, "x/env", Task("t"), 0, (TokenSpan.forced(prompt), sampled), score=Score(i)))
    return Group("s", seed, Task("t"), tuple(members))


def train(trainer: Any) -> None:
    trainer.warm_up()
    losses = []
    for step in range(3):
        trainer.accumulate(group(step))
        losses.append(trainer.apply()["loss"])
    kept = trainer.state()
    norm = float(sum(np.sum(np.square(np.asarray(leaf))) for leaf in jax.tree.leaves(trainer.weights().params)))
    trainer.restore(kept)
    print(json.dumps({"losses": losses, "norm": norm, "devices": jax.device_count()}))


mesh = Mesh(np.asarray(jax.devices(), object).reshape(1, -1, 1), AXES_OF_MESH)
algorithm = policy_gradient("x/plain", centred, ratio_objective)
trainer = Trainer(model, jax.device_get(model.init(0)), {"s": algorithm}, config, steps=9, layout=MeshLayout(mesh))
if processes == 1:
    train(trainer)
elif process == 0:
    with leading(trainer, hosts) as leader:
        train(leader)
else:
    follow(trainer, hosts)
