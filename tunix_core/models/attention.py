"""Grouped-query attention: over its own tokens, or over a cache that it writes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tunix_core.models.config import DecoderConfig
from tunix_core.models.layers import Draw, Norm, dense, weight
from tunix_core.models.pieces import LayerCache
from tunix_core.models.placement import spread
from tunix_core.models.rotary import Rotation, rotate

Array = jax.Array
Attend = Callable[[Array, Array, Array, LayerCache, float], tuple[Array, LayerCache]]


class View(NamedTuple):
    """How a layer sees the tokens: their rotation, and what attends.

    `attend` takes queries [S, T, heads, D], keys and values [S, T, kv_heads, D], the layer's cache and a scale; it
    gives [S, T, heads, D] and what of the cache it wrote to.
    """

    rotation: Rotation
    attend: Attend


class Attention(nnx.Module):
    """Queries in groups share a key and value head."""

    def __init__(self, config: DecoderConfig, draw: Draw) -> None:
        self.config = config
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q = weight(draw, config, config.width, query)
        self.k = weight(draw, config, config.width, key)
        self.v = weight(draw, config, config.width, key)
        self.o = weight(draw, config, query, config.width, scale=(2 * config.layers) ** -0.5)
        if config.qkv_bias:
            self.q_bias, self.k_bias, self.v_bias = (
                nnx.Param(jnp.zeros((size,), config.dtype)) for size in (query, key, key)
            )
        if config.qk_norm:
            self.q_norm, self.k_norm = Norm(config, config.head_dim), Norm(config, config.head_dim)

    def __call__(self, x: Array, view: View, cache: LayerCache) -> tuple[Array, LayerCache]:
        """x [S, T, width] -> [S, T, width], and what of the cache was written to."""
        q, k, v = self._heads(x)
        q, k = rotate(q, view.rotation), rotate(k, view.rotation)
        c = self.config
        out, written = view.attend(q, k, v, cache, c.query_scale or c.head_dim**-0.5)
        return dense(out.reshape(*x.shape[:2], c.heads * c.head_dim), self.o), written

    def _heads(self, x: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values, [S, T, heads or kv_heads, head_dim], before rotation."""
        c = self.config
        q, k, v = dense(x, self.q), dense(x, self.k), dense(x, self.v)
        if c.qkv_bias:
            q, k, v = q + self.q_bias[...], k + self.k_bias[...], v + self.v_bias[...]
        q = spread(_split(q, c.heads), None, "heads", None)
        k, v = (spread(_split(x, c.kv_heads), None, "kv_heads", None) for x in (k, v))
        return (self.q_norm(q), self.k_norm(k), v) if c.qk_norm else (q, k, v)


def _split(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
