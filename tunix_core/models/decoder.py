"""A causal decoder in Flax NNX: RMSNorm before each block, rotary positions, grouped queries, SwiGLU.

`DecoderModel` is the decoder as pure functions over a nested dict of weights (contracts.Model).
Weights are stored (in, out). Knows nothing of text, sampling, or training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tunix_core.models.config import DecoderConfig

Array = jax.Array
Params = dict[str, Any]
LayerCache = dict[str, Array]
Cache = dict[str, LayerCache]
Rotation = tuple[Array, Array]
Draw = Callable[[tuple[int, int], float], Any]
MASKED = -1e30  # finite, so that a row with nothing to attend to gives numbers, not NaN


class Norm(nnx.Module):
    """RMSNorm over the last axis, computed in float32."""

    def __init__(self, config: DecoderConfig) -> None:
        self.eps = config.norm_eps
        self.scale = nnx.Param(jnp.ones((config.width,), config.dtype))

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        unit = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return unit.astype(x.dtype) * self.scale[...]


class Attention(nnx.Module):
    """Grouped-query attention, over its own tokens or over a cache that it writes first."""

    def __init__(self, config: DecoderConfig, draw: Draw) -> None:
        self.config = config
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q = _weight(draw, config, config.width, query)
        self.k = _weight(draw, config, config.width, key)
        self.v = _weight(draw, config, config.width, key)
        self.o = _weight(draw, config, query, config.width, scale=(2 * config.layers) ** -0.5)

    def __call__(
        self, x: Array, rotation: Rotation, bias: Array, positions: Array, cache: LayerCache | None
    ) -> tuple[Array, LayerCache]:
        """x [S, T, width], bias [S, T, L] -> [S, T, width], and the keys and values attended to."""
        c = self.config
        q = rotate(_split(dense(x, self.q), c.heads), rotation)
        k = rotate(_split(dense(x, self.k), c.kv_heads), rotation)
        v = _split(dense(x, self.v), c.kv_heads)
        seen = (
            {"k": k.transpose(0, 2, 3, 1), "v": v.transpose(0, 2, 1, 3)}
            if cache is None
            else write(cache, k, v, positions)
        )
        out = attend(q, seen["k"], seen["v"], bias).reshape(*x.shape[:2], c.heads * c.head_dim)
        return dense(out, self.o), seen


class Gated(nnx.Module):
    """SwiGLU: a gated MLP."""

    def __init__(self, config: DecoderConfig, draw: Draw) -> None:
        self.gate = _weight(draw, config, config.width, config.mlp_width)
        self.up = _weight(draw, config, config.width, config.mlp_width)
        self.down = _weight(draw, config, config.mlp_width, config.width, scale=(2 * config.layers) ** -0.5)

    def __call__(self, x: Array) -> Array:
        return dense(jax.nn.silu(dense(x, self.gate)) * dense(x, self.up), self.down)


class Block(nnx.Module):
    """Attention, then the MLP, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, draw: Draw) -> None:
        self.attention_norm = Norm(config)
        self.attention = Attention(config, draw)
        self.mlp_norm = Norm(config)
        self.mlp = Gated(config, draw)

    def __call__(
        self, x: Array, rotation: Rotation, bias: Array, positions: Array, cache: LayerCache | None
    ) -> tuple[Array, LayerCache]:
        attended, seen = self.attention(self.attention_norm(x), rotation, bias, positions, cache)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), seen


class Decoder(nnx.Module):
    """The whole network, from token ids to the normalised last hidden state."""

    def __init__(self, config: DecoderConfig, draw: Draw) -> None:
        self.config = config
        self.embedding = _weight(draw, config, config.vocab_size, config.width, fan_in=config.width)
        self.layers = nnx.Dict({str(i): Block(config, draw) for i in range(config.layers)})
        self.norm = Norm(config)
        if not config.tie_embeddings:
            self.head = _weight(draw, config, config.width, config.vocab_size)

    def __call__(self, tokens: Array, positions: Array, bias: Array, cache: Cache | None = None) -> tuple[Array, Cache]:
        """tokens, positions [S, T], bias [S, T, L] -> hidden [S, T, width], and the keys and values attended to."""
        rotation = rotary(positions, self.config)
        x = self.embedding[...][tokens]
        seen: Cache = {}
        for name, block in self.layers.items():
            x, seen[name] = block(x, rotation, bias, positions, cache[name] if cache else None)
        return self.norm(x), seen

    def logits(self, hidden: Array) -> Array:
        """hidden [..., width] -> float32 [..., vocab_size]."""
        head = self.embedding[...].T if self.config.tie_embeddings else self.head[...]
        flat = _matmul(hidden.reshape(-1, hidden.shape[-1]), head)
        return flat.reshape(*hidden.shape[:-1], head.shape[1])


class DecoderModel:
    """A decoder as pure functions over its weights: a nested dict whose paths are the checkpoint's names.

    `forward`, `forward_cached` and `logits` are made to be traced under `jax.jit`.
    """

    def __init__(self, config: DecoderConfig) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self._graph, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(config, _zeros)))
        self.shapes: Params = nnx.to_pure_dict(shapes)

    def init(self, seed: int) -> Params:
        """Random weights, a function of the seed alone."""
        return nnx.to_pure_dict(nnx.state(Decoder(self.config, _normal(seed))))

    def forward(self, params: Params, tokens: Array, positions: Array, segment_ids: Array) -> Array:
        """[R, T] int32 each -> hidden [R, T, width]. A token attends to itself and earlier tokens of its segment."""
        order = jnp.arange(tokens.shape[1])
        mask = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (order[:, None] >= order[None, :])
        return self._decoder(params)(tokens, positions, _bias(mask))[0]

    def init_cache(self, slots: int, length: int) -> Cache:
        """Zeros for `slots` conversations of up to `length` tokens; every leaf's leading axis is S."""
        c = self.config
        k, v = (slots, c.kv_heads, c.head_dim, length), (slots, c.kv_heads, length, c.head_dim)
        return {str(i): {"k": jnp.zeros(k, c.dtype), "v": jnp.zeros(v, c.dtype)} for i in range(c.layers)}

    def forward_cached(self, params: Params, tokens: Array, positions: Array, cache: Cache) -> tuple[Array, Cache]:
        """tokens, positions int32 [S, T], cache of length L -> hidden [S, T, width] and the cache.

        Writes keys and values at `positions` of each slot, then attends to cache positions <= its own.
        A position >= L writes nothing; what is computed for it has no meaning, and is finite.
        """
        mask = jnp.arange(cache["0"]["k"].shape[-1]) <= positions[:, :, None]
        return self._decoder(params)(tokens, positions, _bias(mask), cache)

    def logits(self, params: Params, hidden: Array) -> Array:
        """hidden [..., width] -> float32 [..., vocab_size]."""
        return self._decoder(params).logits(hidden)

    def _decoder(self, params: Params) -> Decoder:
        return nnx.merge(self._graph, params)


def rotary(positions: Array, config: DecoderConfig) -> Rotation:
    """Cosine and sine of each position's angles: [S, T] -> two float32 [S, T, 1, head_dim / 2]."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Array, rotation: Rotation) -> Array:
    """Turns the two halves of each head, [S, T, heads, head_dim], by its position's angles."""
    cos, sin = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def dense(x: Array, weight: nnx.Param[Array]) -> Array:
    """x [..., in], weight [in, out] -> [..., out]. Flat inside: the gradient takes half the time on a CPU."""
    flat = x.reshape(-1, x.shape[-1]) @ weight[...]
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def write(cache: LayerCache, k: Array, v: Array, positions: Array) -> LayerCache:
    """k, v [S, T, kv_heads, D] put at positions [S, T] of the cache; those past its end are dropped."""
    slots = jnp.arange(positions.shape[0])[:, None]
    return {
        "k": cache["k"].at[slots, :, :, positions].set(k, mode="drop"),
        "v": cache["v"].at[slots, :, positions].set(v, mode="drop"),
    }


def attend(q: Array, k: Array, v: Array, bias: Array) -> Array:
    """q [S, T, heads, D], k [S, kv_heads, D, L], v [S, kv_heads, L, D], bias [S, T, L] -> [S, T, heads, D].

    Both products run along rows that lie in memory as they are read: on a CPU, decoding a full batch
    of slots takes half the time it takes with k and v [S, L, kv_heads, D].
    """
    slots, length, heads, size = q.shape
    kv_heads, group = k.shape[1], heads // k.shape[1]
    grouped = (q * size**-0.5).reshape(slots, length, kv_heads, group, size).transpose(0, 2, 3, 1, 4)
    scores = _matmul(grouped.reshape(slots, kv_heads, group * length, size), k)
    scores = scores.reshape(slots, kv_heads, group, length, -1) + bias[:, None, None]
    shares = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    out = _matmul(shares.reshape(slots, kv_heads, group * length, -1), v).astype(v.dtype)
    return out.reshape(slots, kv_heads, group, length, size).transpose(0, 3, 1, 2, 4).reshape(q.shape)


def _bias(mask: Array) -> Array:
    """What is added to the scores: 0 where the mask is true, else so little that its share is exactly 0."""
    return jnp.where(mask, 0.0, MASKED)


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _split(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def _weight(
    draw: Draw, config: DecoderConfig, rows: int, columns: int, *, fan_in: int | None = None, scale: float = 1.0
) -> nnx.Param[Array]:
    return nnx.Param(jnp.asarray(draw((rows, columns), scale * (fan_in or rows) ** -0.5), config.dtype))


def _normal(seed: int) -> Draw:
    """NumPy's generator: nothing to compile, and the same weights on every device."""
    rng = np.random.default_rng(seed)
    return lambda shape, deviation: rng.standard_normal(shape, np.float32) * np.float32(deviation)


def _zeros(shape: tuple[int, int], deviation: float) -> Array:
    return jnp.zeros(shape)
