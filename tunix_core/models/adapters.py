"""Low-rank adapters (LoRA) beside a decoder's frozen weights, by Qwix.

A target matrix W [in, out] computes x W + (alpha / rank) (x A) B, with A [in, rank] and B [rank, out]
(Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models", eq. 3). B begins at zero, so that nothing
is changed yet. The frozen matrices may be kept in few bits (QLoRA).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx

from tunix_core.contracts import Adapters, Model
from tunix_core.errors import UsageError
from tunix_core.models.decoder import Decoder, DecoderModel
from tunix_core.models.paths import Params, flatten, unflatten
from tunix_core.models.quantized import Kind, opened, quantize

A, B = "_lora_a", "_lora_b"  # what Qwix puts after a weight's name


def make_adapters(
    model: Model, *, rank: int, alpha: float, targets: Sequence[str], seed: int, base: Literal["model"] | Kind = "model"
) -> Adapters:
    """Adapters for all matrices of the targeted parts of every layer.

    Args:
        rank: columns of A; at least 1.
        alpha: what they add counts alpha / rank.
        targets: of a layer's parts, "attention" and "mlp".
        seed: of the first A.
        base: in what all matrices of the layers are kept: as the model has them, or in fewer bits.

    Raises:
        UsageError: a model of another kind than ours, or Qwix isn't installed.
    """
    if not isinstance(model, DecoderModel):
        raise UsageError(f"trainer.lora needs a decoder of tunix_core.models, and this is an {type(model).__name__}")
    adapted = DecoderModel(model.config, partial(_adapted, rank=rank, alpha=alpha, targets=targets))
    rng = np.random.default_rng(seed)
    first = {path: _first(rng, path, leaf) for path, leaf in flatten(adapted.shapes) if path.endswith((A, B))}
    kept = _as_it_is if base == "model" else partial(_in_few_bits, kind=base)
    return Adapters(adapted, unflatten(first), kept, _joined, partial(_merged, scale=alpha / rank))


def _adapted(decoder: Decoder, rank: int, alpha: float, targets: Sequence[str]) -> Decoder:
    """The decoder with matrices A and B beside its targets, whose products Qwix adds them to."""
    try:
        import qwix
    except ImportError as error:
        raise UsageError("trainer.lora needs Qwix: pip install 'tunix-core[train]'") from error
    where = rf"layers/\d+/({'|'.join(targets)})"
    for path, module in list(nnx.iter_modules(decoder)):
        if re.fullmatch(where, "/".join(map(str, path))):
            for name, (rows, columns) in _matrices(module).items():
                setattr(module, name + A, nnx.LoRAParam(jnp.zeros((rows, rank), decoder.config.dtype)))
                setattr(module, name + B, nnx.LoRAParam(jnp.zeros((rank, columns), decoder.config.dtype)))
    rule = qwix.LoraRule(module_path=where, rank=rank, alpha=alpha)
    # Qwix finds a weight by identity, which a nested jit (jnp.matmul is one) would hide; the step is jitted as a whole.
    provider = qwix.LoraProvider([rule], disable_jit=True)
    # Its own call with sample inputs would only make the matrices that are there already.
    adapted: Any = qwix.apply_lora_to_model(decoder, provider, None, rngs=None, skip_nnx_init=True)
    return adapted


def _matrices(module: nnx.Module) -> dict[str, tuple[int, int]]:
    found = {name: value for name, value in vars(module).items() if isinstance(value, nnx.Param)}
    return {name: value.shape for name, value in found.items() if len(value.shape) == 2}


def _first(rng: np.random.Generator, path: str, leaf: Any) -> Any:
    """B is zero; A uniform in ± sqrt(6 / in) (He et al., 2015), as Qwix would draw it."""
    if path.endswith(B):
        return jnp.zeros(leaf.shape, leaf.dtype)
    bound = (6.0 / leaf.shape[0]) ** 0.5
    return jnp.asarray(rng.uniform(-bound, bound, leaf.shape), leaf.dtype)


def _as_it_is(params: Params) -> Params:
    return params


def _in_few_bits(params: Params, *, kind: Kind) -> Params:
    """One matrix at a time, so that no second copy of all of them is ever there."""
    matrices = {path for path, leaf in flatten(params) if path.startswith("layers.") and leaf.ndim == 2}
    return unflatten({path: quantize(leaf, kind) if path in matrices else leaf for path, leaf in flatten(params)})


def _joined(adapters: Params, base: Params) -> Params:
    return unflatten({**dict(flatten(base)), **dict(flatten(adapters))})


def _merged(adapters: Params, base: Params, *, scale: float) -> Params:
    low, merged = dict(flatten(adapters)), dict(flatten(opened(base)))
    for path, weight in merged.items():
        if path + A in low:
            change = low[path + A].astype(jnp.float32) @ low[path + B].astype(jnp.float32)
            merged[path] = (weight + scale * change).astype(weight.dtype)
    return unflatten(merged)
