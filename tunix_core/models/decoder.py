"""A causal decoder in Flax NNX: RMSNorm before each part, rotary positions, grouped queries, a gated MLP.

`DecoderModel` is the decoder as pure functions over a nested dict of weights (contracts.Model).
Weights are stored (in, out). Knows nothing of text, sampling, or training, nor of any one model: what
sets families apart is in `DecoderConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from tunix_core.contracts import Remat
from tunix_core.models.attention import Attend, Attention, View
from tunix_core.models.config import DecoderConfig
from tunix_core.models.layers import Draw, Norm, dense, matmul, normal, weight, zeros
from tunix_core.models.pieces import LayerCache, attend_cached, attend_step, joined, lengths_of, pieces_of, settle
from tunix_core.models.placement import gathered, spread
from tunix_core.models.quantized import has_quantized, opened
from tunix_core.models.recomputed import again, gated
from tunix_core.models.rotary import rotary
from tunix_core.models.tile_attention import attend_tiles
from tunix_core.models.tiles import make_tiles

Array = jax.Array
Params = dict[str, Any]
Cache = dict[str, dict[str, Array]]  # one piece: by layer, "k" [S, kv_heads, D, L] and "v" [S, kv_heads, L, D]
ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": partial(jax.nn.gelu, approximate=True)}


class Gated(nnx.Module):
    """A gated MLP: SwiGLU, or its like with another activation."""

    def __init__(self, config: DecoderConfig, draw: Draw) -> None:
        self.activation = config.activation
        self.gate = weight(draw, config, config.width, config.mlp_width)
        self.up = weight(draw, config, config.width, config.mlp_width)
        self.down = weight(draw, config, config.mlp_width, config.width, scale=(2 * config.layers) ** -0.5)

    def __call__(self, x: Array) -> Array:
        gate, up = (spread(dense(x, matrix), None, "mlp") for matrix in (self.gate, self.up))
        return dense(gated(ACTIVATIONS[self.activation], gate, up), self.down)


class Block(nnx.Module):
    """Attention, then the MLP, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, draw: Draw) -> None:
        self.post_norms = config.post_norms
        self.attention_norm = Norm(config, config.width)
        self.attention = Attention(config, draw)
        self.mlp_norm = Norm(config, config.width)
        self.mlp = Gated(config, draw)
        if config.post_norms:
            self.attention_post_norm, self.mlp_post_norm = Norm(config, config.width), Norm(config, config.width)

    def __call__(self, x: Array, view: View, cache: LayerCache) -> tuple[Array, LayerCache]:
        attended, written = self.attention(spread(self.attention_norm(x), None, None), view, cache)
        x = spread(x + (self.attention_post_norm(attended) if self.post_norms else attended), None, None)
        changed = self.mlp(spread(self.mlp_norm(x), None, None))
        return spread(x + (self.mlp_post_norm(changed) if self.post_norms else changed), None, None), written


class Decoder(nnx.Module):
    """The whole network, from token ids to the normalised last hidden state."""

    def __init__(self, config: DecoderConfig, draw: Draw) -> None:
        self.config = config
        self.embedding = weight(draw, config, config.vocab_size, config.width, fan_in=config.width)
        self.layers = nnx.Dict({str(i): Block(config, draw) for i in range(config.layers)})
        self.norm = Norm(config, config.width)
        if not config.tie_embeddings:
            self.head = weight(draw, config, config.width, config.vocab_size)

    def __call__(
        self,
        tokens: Array,
        positions: Array,
        attending: Callable[[int | None], Attend],
        cache: dict[str, LayerCache] | None = None,
        remat: Remat = "none",
    ) -> tuple[Array, dict[str, LayerCache]]:
        """The hidden states [S, T, width], and what of the cache was written to.

        Args:
            tokens, positions: int32 [S, T].
            attending: what attends in a layer that sees no further back than so many positions.
            remat: what backward computes again; only without a cache.
        """
        c = self.config
        local = frozenset(map(str, c.local_layers))
        views = {False: View(rotary(positions, c.head_dim, c.rope_theta, c.rope_scaling), attending(None))}
        if local:
            near = rotary(positions, c.head_dim, c.local_rope_theta) if c.local_rope_theta else views[False].rotation
            views[True] = View(near, attending(c.local_window))
        x = spread(gathered(self.embedding[...], "vocab", None)[tokens], None, None)
        if c.embedding_scale != 1.0:
            x = x * jnp.asarray(c.embedding_scale, x.dtype)
        written: dict[str, LayerCache] = {}
        for name in map(str, range(c.layers)):  # merging leaves the dict in order of its names, "10" before "2"
            block, view = self.layers[name], views[name in local]
            if cache is None:
                x = _uncached(block, view, remat)(x)
            else:
                x, written[name] = block(x, view, cache[name])
        return spread(self.norm(x), None, None), written

    def logits(self, hidden: Array) -> Array:
        """hidden [..., width] -> float32 [..., vocab_size]."""
        states = hidden.reshape(-1, hidden.shape[-1])
        if self.config.tie_embeddings:
            flat = matmul(states, self.embedding[...].T)
        else:  # a transpose after it would be folded into the product: it takes a CPU up to five times as long then
            flat = lax.optimization_barrier(matmul(states, self.head[...]))
        return flat.reshape(*hidden.shape[:-1], flat.shape[1])


class DecoderModel:
    """A decoder as pure functions over its weights: a nested dict whose paths are the checkpoint's names.

    `forward`, `forward_cached` and `logits` are made to be traced under `jax.jit`.

    Args:
        adapted: puts something beside the decoder's weights; `init` draws the weights alone.
    """

    def __init__(self, config: DecoderConfig, adapted: Callable[[Decoder], Decoder] = lambda decoder: decoder) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self._graph, shapes = nnx.split(nnx.eval_shape(lambda: adapted(Decoder(config, zeros))))
        self.shapes: Params = nnx.to_pure_dict(shapes)

    def init(self, seed: int) -> Params:
        """Random weights, a function of the seed alone."""
        return nnx.to_pure_dict(nnx.state(Decoder(self.config, normal(seed))))

    def forward(
        self, params: Params, tokens: Array, positions: Array, seen_until: Array, remat: Remat = "none"
    ) -> Array:
        """[R, T] int32 each -> hidden [R, T, width]. The token of column i attends to those of columns
        j <= i with seen_until[j] > i."""
        tiles = make_tiles(positions, seen_until)

        def attending(window: int | None) -> Attend:
            return lambda q, k, v, cache, scale: (attend_tiles(q, k, v, tiles, scale, window), cache)

        return self._decoder(params)(tokens, positions, attending, remat=remat)[0]

    def init_cache(self, slots: int, length: int) -> Cache:
        """Zeros for `slots` conversations of up to `length` tokens; every leaf's leading axis is S."""
        c = self.config
        k, v = (slots, c.kv_heads, c.head_dim, length), (slots, c.kv_heads, length, c.head_dim)
        return {str(i): {"k": jnp.zeros(k, c.dtype), "v": jnp.zeros(v, c.dtype)} for i in range(c.layers)}

    def forward_cached(
        self, params: Params, tokens: Array, positions: Array, slots: Array, cache: tuple[Cache, ...]
    ) -> tuple[Array, tuple[Cache, ...]]:
        """tokens, positions int32 [R, T], slots int32 [R], a cache of pieces -> hidden [R, T, width] and the cache.

        Writes keys and values at `positions` of the row's slot, then attends to that slot's cache positions <= its
        own, what other rows of that slot wrote included. A position past the last piece writes nothing; what is
        computed for it has no meaning, and is finite. Pieces that no position reaches are not read.
        """
        lengths = lengths_of(cache)

        def attending(window: int | None) -> Attend:
            return partial(attend_cached, positions=positions, slots=slots, lengths=lengths, window=window)

        hidden, written = self._decoder(params)(tokens, positions, attending, joined(cache))
        return hidden, pieces_of(written)

    def decode(
        self, params: Params, tokens: Array, positions: Array, cache: tuple[Cache, ...], fresh: Cache, step: Array
    ) -> tuple[Array, Cache]:
        """tokens, positions int32 [S], step int32 -> hidden [S, width] and `fresh` with place `step` written; see
        contracts.Model. What is computed for a slot whose position is past the last piece has no meaning, and is
        finite."""
        lengths = lengths_of(cache)

        def attending(window: int | None) -> Attend:
            return partial(attend_step, positions=positions, step=step, lengths=lengths, window=window)

        layers = {name: {**layer, "fresh": fresh[name]} for name, layer in joined(cache).items()}
        hidden, fresh = self._decoder(params)(tokens[:, None], positions[:, None], attending, layers)
        return hidden[:, 0], fresh

    def settle(self, cache: tuple[Cache, ...], fresh: Cache, positions: Array, counts: Array) -> tuple[Cache, ...]:
        """The cache with the first `counts` [S] steps of `fresh` written from `positions` [S] on."""
        return settle(cache, fresh, positions, counts)

    def logits(self, params: Params, hidden: Array) -> Array:
        """hidden [..., width] -> float32 [..., vocab_size]."""
        whole = (None,) * (hidden.ndim - 2)
        logits = self._decoder(params).logits(spread(hidden, *whole, None))
        return spread(logits, *whole, "vocab")

    def _decoder(self, params: Params) -> Decoder:
        return nnx.merge(self._graph, params)


def _uncached(block: Block, view: View, remat: Remat) -> Callable[[Array], Array]:
    """The block as a function of its input alone, on nothing but the tokens given."""
    graph, state = nnx.split(block)
    params = nnx.to_pure_dict(state)

    def layer(params: Params, x: Array) -> Array:
        return nnx.merge(graph, opened(params, x))(x, view, {})[0]

    if remat == "layers" or has_quantized(params):  # else what quantized matrices stand for would be kept for backward
        return partial(again, layer, params)
    return partial(layer, params)
