"""Optimizers and schedules by name."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.config import TrainerConfig
from tunix_core.errors import UsageError
from tunix_core.trainer.optimizer import make_optimizer, make_schedule


def rates(steps: int, **fields: Any) -> list[float]:
    schedule = make_schedule(TrainerConfig(learning_rate=1.0, **fields), steps)
    return [float(jnp.asarray(schedule(at))) for at in range(steps)]


def test_constant() -> None:
    assert rates(4) == [1.0] * 4


def test_warm_up_rises_to_the_rate_and_starts_above_zero() -> None:
    assert rates(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert rates(3, warmup_steps=1) == [1.0, 1.0, 1.0]


def test_linear_falls_to_zero_at_the_end() -> None:
    assert rates(4, schedule="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert rates(6, schedule="linear", warmup_steps=2) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_cosine_falls_by_half_at_the_middle() -> None:
    assert rates(4, schedule="cosine")[2] == pytest.approx(0.5)


def test_the_gradient_is_clipped_by_its_global_norm() -> None:
    config = TrainerConfig(optimizer="sgd", learning_rate=1.0, max_grad_norm=5.0)
    optimizer = make_optimizer(config, make_schedule(config, 1))
    gradient = {"a": jnp.array([6.0]), "b": jnp.array([8.0])}
    steps: Any = optimizer.update(gradient, optimizer.init(gradient))[0]
    np.testing.assert_allclose([steps["a"][0], steps["b"][0]], [-3.0, -4.0], rtol=1e-6)


def test_options_reach_the_optimizer() -> None:
    config = TrainerConfig(optimizer="sgd", learning_rate=1.0, optimizer_options={"momentum": 0.5})
    optimizer = make_optimizer(config, make_schedule(config, 1))
    one = {"a": jnp.array([0.5])}
    _, state = optimizer.update(one, optimizer.init(one))
    steps: Any = optimizer.update(one, state)[0]
    assert float(steps["a"][0]) == pytest.approx(-0.75)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": "adamv"}, "'adamv' is no optimizer of optax. Did you mean"),
        ({"optimizer": "clip"}, "'clip' is no optimizer"),
        ({"optimizer_options": {"weight_decai": 1}}, "adamw takes no 'weight_decai'. Did you mean 'weight_decay'"),
    ],
)
def test_what_optax_does_not_have_is_refused(fields: dict[str, Any], message: str) -> None:
    config = TrainerConfig(**fields)
    with pytest.raises(UsageError, match=message):
        make_optimizer(config, make_schedule(config, 1))
