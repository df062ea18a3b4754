"""The estimate of a step's memory, and what is said when it doesn't suffice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tunix_core.config import TrainerConfig
from tunix_core.contracts import Critic, LossTerms
from tunix_core.errors import EngineError, OutOfMemory
from tunix_core.trainer import Trainer
from tunix_core.trainer.memory import advised, bytes_of, memory_line, step_bytes

sys.path.insert(0, str(Path(__file__).parent))
from temporaries import MODEL, OBJECTIVE, told_and_taken

MIB = 2**20


def test_what_backward_needs_is_counted_by_shapes() -> None:
    """tanh keeps its result [64, 256]; the product keeps its input [64, 128], which is not the step's to free."""
    x = jnp.ones((64, 128))
    weight = jax.ShapeDtypeStruct((128, 256), jnp.float32)
    kept, largest = step_bytes(lambda w: jnp.tanh(x @ w).sum(), weight)
    assert largest == 64 * 256 * 4
    assert 64 * 256 * 4 <= kept + 128 * 256 * 4 <= 3 * (64 * 256 + 64 * 128) * 4
    again, _ = step_bytes(jax.checkpoint(lambda w: jnp.tanh(x @ w).sum()), weight)
    assert again <= kept


def test_more_rows_need_more() -> None:
    def loss(rows: int) -> int:
        return step_bytes(lambda w: (jnp.tanh(jnp.ones((rows, 64)) @ w) ** 2).sum(), jnp.ones((64, 64)))[0]

    assert loss(512) > 1.9 * loss(256) > 0


def test_what_was_there_before_is_not_counted() -> None:
    """Neither parameters nor, as beside adapters, what stays as it is; both are needed in backward."""
    x, frozen = jnp.ones((8, 512)), jnp.ones((512, 512))

    def loss(w: jax.Array) -> jax.Array:
        return (x @ frozen @ w @ frozen @ w).sum()

    kept, _ = step_bytes(loss, jnp.ones((512, 512)))
    assert 0 < kept <= 3 * x.nbytes


@pytest.mark.parametrize(("rows", "row_tokens"), [(4, 256), (1, 32)])
def test_a_step_takes_about_what_was_estimated(rows: int, row_tokens: int) -> None:
    """Most of it activations, or, where the batch is small, what an update has in hand."""
    told, taken = told_and_taken(TrainerConfig(rows=rows, row_tokens=row_tokens))
    assert 0.6 * told < taken < 1.1 * told


def test_a_step_on_a_mesh_takes_no_more_than_was_estimated() -> None:
    """Where batches are small, most of it are weights gathered and their gradients."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(Path(__file__).with_name("temporaries.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) == 2
    for told, taken in found:
        assert 0.6 * told < taken < told


def test_a_checkpoint_has_a_critic_too() -> None:
    config = TrainerConfig(rows=1, row_tokens=32)
    plain, beside = (
        Trainer(MODEL, MODEL.init(0), {"s": replace(OBJECTIVE, critic=critic)}, config, steps=1).memory()
        for critic in (None, Critic(lambda values, batch: LossTerms(values.sum(), values.size, {})))
    )
    copy = "a checkpoint's copy"
    assert beside[copy] > 1.9 * plain[copy]


def test_bytes_are_those_of_one_device() -> None:
    assert bytes_of({"a": jnp.ones((4, 4)), "b": jnp.ones(3, jnp.bfloat16)}) == 64 + 6


def test_the_line_has_the_parts_their_sum_and_what_there_is() -> None:
    line = memory_line({"parameters": 3 * MIB, "nothing": 0, "optimizer": MIB}, 2**30)
    assert line == "memory of a device, about: parameters 3.0 MiB, optimizer 1.0 MiB; 4.0 MiB of 1.00 GiB in all."
    assert "more than there is; lower trainer.rows" in memory_line({"parameters": 3 * MIB}, 2 * MIB)


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError, EngineError])
def test_running_out_says_what_to_lower(error: type[Exception]) -> None:
    with (
        pytest.raises(OutOfMemory, match=r"RESOURCE_EXHAUSTED: .* Estimated were activations 9.0 MiB, .*trainer.rows"),
        advised({"parameters": MIB, "activations": 9 * MIB}),
    ):
        raise error("RESOURCE_EXHAUSTED: Out of memory allocating 12345 bytes")


def test_any_other_error_stays_what_it_is() -> None:
    with pytest.raises(EngineError, match="INTERNAL"), advised({}):
        raise EngineError("INTERNAL: something else")
