"""What a step is told to take of a device beyond what is there before it, and what the compiler says it takes.

Run by test_memory.py on eight virtual devices: prints both for two meshes.
"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from jax.sharding import Mesh

from tunix_core.algorithms import clip_objective, normalised, policy_gradient
from tunix_core.config import TrainerConfig
from tunix_core.models import AXES_OF_MESH, DecoderConfig, DecoderModel, MeshLayout
from tunix_core.models.weights import heads_together
from tunix_core.trainer import Trainer
from tunix_core.trainer.placing import Placing

MODEL = DecoderModel(DecoderConfig(512, 128, 4, 4, 2, 32, 512, 1024))
OBJECTIVE = policy_gradient("test/clip", normalised, clip_objective(0.2, 0.2))
PASSING = ("activations", "largest array", "gathered over fsdp", "gradients in passing")


def told_and_taken(config: TrainerConfig, axes: tuple[int, int, int] | None = None) -> tuple[int, int]:
    """Bytes, of a step on a mesh of these axes, or on one device."""
    layout = None
    if axes:
        devices = np.asarray(jax.devices()[: int(np.prod(axes))], object).reshape(axes)
        layout = MeshLayout(Mesh(devices, AXES_OF_MESH), together=heads_together(MODEL))
    taken: dict[str, int] = {}
    jitted = Placing.jit

    def measured(self: Placing, function: Any, outputs: Any, **how: Any) -> Any:
        program = jitted(self, function, outputs, **how)

        def call(*arguments: Any) -> Any:
            found = program.lower(*arguments).compile().memory_analysis()
            taken[function.__name__] = max(taken.get(function.__name__, 0), found.temp_size_in_bytes)
            return program(*arguments)

        return call

    with patch.object(Placing, "jit", measured):
        learner = Trainer(MODEL, MODEL.init(0), {"s": OBJECTIVE}, config, steps=1, layout=layout)
        needs = learner.memory()
        learner.warm_up()
    return sum(needs[name] for name in PASSING), max(taken["add"], taken["update"])


if __name__ == "__main__":
    small = TrainerConfig(rows=8, row_tokens=32)
    print(json.dumps([told_and_taken(small, axes) for axes in ((1, 8, 1), (2, 2, 2))]))
