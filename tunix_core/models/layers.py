"""The parts every block is made of: norms, matrix products, and how weights begin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tunix_core.models.config import DecoderConfig

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


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """x [..., D] over its root mean square, times scale [D]: of x's dtype. Backward keeps x alone."""
    unit = _unit(x, eps)[0]
    return unit.astype(x.dtype) * scale if scale.dtype == x.dtype else (unit * scale).astype(x.dtype)


def _norm_forward(x: Array, scale: Array, eps: float) -> tuple[Array, tuple[Array, Array]]:
    return rms_norm(x, scale, eps), (x, scale)


def _norm_backward(eps: float, kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    x, scale = kept
    unit, rate = _unit(after(x, slope), eps)
    slope = slope.astype(jnp.float32)
    by_unit = slope * scale.astype(jnp.float32)
    by_x = rate * (by_unit - unit * jnp.mean(unit * by_unit, axis=-1, keepdims=True))
    each = (slope * unit).reshape(-1, len(scale))
    by_scale = matmul(jnp.ones((1, len(each))), each)[0]  # a CPU takes many times as long for a sum over rows
    return by_x.astype(x.dtype), by_scale.astype(scale.dtype)


def _unit(x: Array, eps: float) -> tuple[Array, Array]:
    wide = x.astype(jnp.float32)
    rate = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return wide * rate, rate


rms_norm.defvjp(_norm_forward, _norm_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def gated(activation: Callable[[Array], Array], gate: Array, up: Array) -> Array:
    """activation(gate) · up. Backward keeps these two alone."""
    return activation(gate) * up


def _gated_forward(activation: Callable[[Array], Array], *given: Array) -> tuple[Array, tuple[Array, ...]]:
    return gated(activation, *given), given


def _gated_backward(
    activation: Callable[[Array], Array], kept: tuple[Array, Array], slope: Array
) -> tuple[Array, Array]:
    return jax.vjp(lambda gate, up: activation(gate) * up, after(kept[0], slope), kept[1])[1](slope)


gated.defvjp(_gated_forward, _gated_backward)


def again(layer: Callable[[Any, Array], Array], params: Any, x: Array) -> Array:
    """layer(params, x), whose backward keeps these two alone and computes the rest again."""
    # Traced here and now: what intercepts the products of a model is at work while it is called, not in backward.
    traced, others = jax.closure_convert(layer, params, x)

    @jax.custom_vjp
    def run(params: Any, x: Array, others: list[Any]) -> Array:
        return traced(params, x, *others)

    def backward(kept: tuple[Any, Array, list[Any]], slope: Array) -> Any:
        params, x, others = kept
        return jax.vjp(lambda params, x, others: traced(params, x, *others), params, after(x, slope), others)[1](slope)

    run.defvjp(lambda *given: (run(*given), given), backward)
    return run(params, x, others)


def after(x: Array, other: Array) -> Array:
    """x, and not before `other` is there: what is computed from it again in backward isn't kept from forward instead.

    A CPU's compiler drops the barriers that `jax.checkpoint` sets, finds that both are equal, and keeps one. To keep
    less is faster too: fresh memory costs a CPU more than an exponential. An `other` that isn't finite spoils x.
    """
    return x + 0 * other.ravel()[0].astype(x.dtype)


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
