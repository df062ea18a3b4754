"""The parts every block is made of: norms, matrix products, and how weights begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tunix_core.models.config import DecoderConfig
from tunix_core.models.recomputed import rms_norm

Array = jax.Array
Draw = Callable[[tuple[int, int], float], Any]


class Norm(nnx.Module):
    """RMSNorm over the last axis, of `size`, computed in float32."""

    def __init__(self, config: DecoderConfig, size: int) -> None:
        self.eps, self.centred = config.norm_eps, config.centred_norms
        start = jnp.zeros if self.centred else jnp.ones
        self.scale = nnx.Param(start((size,), config.dtype))

    def __call__(self, x: Array) -> Array:
        if self.centred:
            return rms_norm(x, 1.0 + self.scale[...].astype(jnp.float32), self.eps)
        return rms_norm(x, self.scale[...], self.eps)


def dense(x: Array, weight: nnx.Param[Array]) -> Array:
    """x [..., in], weight [in, out] -> [..., out]. Flat inside: the gradient takes half the time on a CPU."""
    flat = x.reshape(-1, x.shape[-1]) @ weight[...]
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def matmul(a: Array, b: Array) -> Array:
    """a [..., n, k], b [..., k, m] -> float32 [..., n, m]."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def weight(
    draw: Draw, config: DecoderConfig, rows: int, columns: int, *, fan_in: int | None = None, scale: float = 1.0
) -> nnx.Param[Array]:
    """A matrix [rows, columns] drawn with deviation scale / sqrt(fan_in or rows)."""
    return nnx.Param(jnp.asarray(draw((rows, columns), scale * (fan_in or rows) ** -0.5), config.dtype))


def normal(seed: int) -> Draw:
    """NumPy's generator: nothing to compile, and the same weights on every device."""
    rng = np.random.default_rng(seed)
    return lambda shape, deviation: rng.standard_normal(shape, np.float32) * np.float32(deviation)


def zeros(shape: tuple[int, int], deviation: float) -> Array:
    """A `Draw` for when only shapes matter."""
    return jnp.zeros(shape)
