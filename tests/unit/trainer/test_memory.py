"""The estimate of a step's memory, and what is said when it doesn't suffice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tunix_core.algorithms import clip_objective, normalised, policy_gradient
from tunix_core.config import TrainerConfig
from tunix_core.errors import EngineError, OutOfMemory
from tunix_core.models.config import DecoderConfig
from tunix_core.models.decoder import DecoderModel
from tunix_core.trainer import Trainer
from tunix_core.trainer.memory import advised, bytes_of, memory_line, step_bytes
from tunix_core.trainer.placing import Placing

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


@pytest.mark.parametrize(("rows", "row_tokens"), [(4, 256), (1, 32)])
def test_a_step_takes_about_what_was_estimated(rows: int, row_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of it activations, or, where the batch is small, what an update has in hand."""
    taken: dict[str, int] = {}
    jitted = Placing.jit

    def measured(self: Placing, function: Any, outputs: Any, **how: Any) -> Any:
        program = jitted(self, function, outputs, **how)

        def call(*arguments: Any) -> Any:
            found = program.lower(*arguments).compile().memory_analysis()
            taken[function.__name__] = max(taken.get(function.__name__, 0), found.temp_size_in_bytes)
            return program(*arguments)

        return call

    monkeypatch.setattr(Placing, "jit", measured)
    config = TrainerConfig(rows=rows, row_tokens=row_tokens)
    model = DecoderModel(DecoderConfig(512, 128, 4, 4, 2, 32, 512, 1024))
    objective = policy_gradient("test/clip", normalised, clip_objective(0.2, 0.2))
    learner = Trainer(model, model.init(0), {"s": objective}, config, steps=1)
    needs = learner.memory()
    learner.warm_up()
    told = sum(needs[name] for name in ("activations", "largest array", "gradients in passing"))
    assert 0.6 * told < max(taken["add"], taken["update"]) < 1.1 * told


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
