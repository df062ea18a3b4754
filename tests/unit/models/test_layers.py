"""Gradients written by hand against those JAX derives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.models.decoder import ACTIVATIONS
from tunix_core.models.layers import gated, rms_norm

SHAPE = (2, 5, 8)


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def plain_norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def check_same(given: Any, expected: Any, arguments: list[np.ndarray], slope: np.ndarray) -> None:
    @jax.jit
    def pulled(*arguments: Any) -> Any:
        out, back = jax.vjp(given, *arguments)
        wanted, wanted_back = jax.vjp(expected, *arguments)
        return (out, *back(slope)), (wanted, *wanted_back(slope))

    for a, b in zip(*pulled(*arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_norm() -> None:
    x, scale, slope = drawn(0, SHAPE, SHAPE[-1:], SHAPE)
    check_same(lambda x, scale: rms_norm(x, scale, 1e-5), plain_norm, [x, scale], slope)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS.keys())
def test_gated(activation: Any) -> None:
    gate, up, slope = drawn(1, SHAPE, SHAPE, SHAPE)
    check_same(lambda a, b: gated(activation, a, b), lambda a, b: activation(a) * b, [gate, up], slope)
