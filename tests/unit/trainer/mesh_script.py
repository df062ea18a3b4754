"""Run by test_meshes.py on eight virtual devices; prints a line for each mesh that gives what one device gives."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from tunix_core.algorithms import centred, clip_objective, policy_gradient
from tunix_core.config import TrainerConfig
from tunix_core.models import AXES_OF_MESH, DecoderConfig, DecoderModel, MeshLayout
from tunix_core.models.weights import heads_together
from tunix_core.trainer import Trainer
from tunix_core.types import Group, SampleId, Score, Task, TokenSpan, Trajectory

TINY = DecoderConfig(64, 32, 1, 4, 2, 8, 64, 64)
NANO = DecoderConfig(512, 128, 4, 4, 2, 32, 384, 512)
SMOLLM2 = DecoderConfig(49_152, 576, 2, 9, 3, 64, 1536, 2048, tie_embeddings=True, rope_theta=100_000.0)
MESHES = {"data": (8, 1, 1), "fsdp": (1, 8, 1), "tensor": (4, 1, 2), "all": (2, 2, 2)}
# A larger eps: Adam makes a whole learning rate out of a gradient that is nothing but rounding.
STEADY = {"eps": 1e-4}
CONFIG = TrainerConfig(
    rows=8, row_tokens=32, learning_rate=1e-3, max_grad_norm=1e9, optimizer_options=STEADY, warn_disagreement=None
)
ALGORITHM = policy_gradient("x/kl", centred, clip_objective(0.2, 0.2), kl="k3", kl_weight=0.1)


def group(seed: int, vocabulary: int) -> Group:
    """Eight samples that fill half a row or more."""
    rng = np.random.default_rng(seed)

    def span(sampled: bool, length: int) -> TokenSpan:
        ids = rng.integers(0, vocabulary, length).astype(np.int32)
        if not sampled:
            return TokenSpan.forced(ids)
        return TokenSpan(ids, True, -rng.uniform(1, 9, length).astype(np.float32), np.zeros(length, np.int32))

    members = [
        Trajectory(SampleId("s", seed, i), "x/env", Task("t"), 0, (span(False, 8), span(True, 9 + i)), score=Score(i))
        for i in range(8)
    ]
    return Group("s", seed, Task("t"), tuple(members))


def layout(model: DecoderModel, axes: tuple[int, int, int], first: int = 0) -> MeshLayout:
    count = int(np.prod(axes))
    devices = np.asarray(jax.devices()[first : first + count], object).reshape(axes)
    return MeshLayout(Mesh(devices, AXES_OF_MESH), together=heads_together(model))


def taken(model: DecoderModel, params: Any, **how: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The losses of two steps, the gradient of the first, and the parameters after both."""
    trainer = Trainer(model, params, {"s": ALGORITHM}, CONFIG, steps=9, **how)
    losses, moments = [], np.empty(0)
    for at in range(2):
        for seed in range(2):
            trainer.accumulate(group(10 * at + seed, model.vocab_size))
        losses.append(trainer.apply()["loss"])
        if at == 0:
            moments = flat(optax.tree.get(trainer.state().optimizer[0], "mu"))
    if how:
        check_laid(trainer, how["layout"])
    return np.array(losses), moments, flat(trainer.weights().params)


def check_laid(trainer: Trainer, layout: MeshLayout) -> None:
    """Parameters and the optimizer's moments lie as the layout says, after updates too."""
    params, state = trainer.weights().params, trainer.state().optimizer[0]
    for tree in (params, optax.tree.get(state, "mu"), optax.tree.get(state, "nu")):
        assert jax.tree.all(jax.tree.map(lambda leaf, there: leaf.sharding == there, tree, layout.of(tree)))


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(tree))])


def relative(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    return [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, expected, strict=True)]


if sys.argv[1] == "tiny":
    jax.config.update("jax_disable_most_optimizations", True)  # run twice, they'd never earn back what they take
model = DecoderModel({"tiny": TINY, "nano": NANO, "smollm2": SMOLLM2}[sys.argv[1]])
params = jax.device_get(model.init(0))
expected = taken(model, params)
for name in sys.argv[2:]:
    if name == "disjoint":
        how = {"layout": layout(model, (1, 2, 2)), "reference_layout": layout(model, (1, 1, 2), 6)}
    else:
        how = {"layout": layout(model, MESHES[name])}
    error = relative(taken(model, params, **how), expected)
    print(name, error, file=sys.stderr)
    assert max(error) < 1e-5, (name, error)
    print(name)
