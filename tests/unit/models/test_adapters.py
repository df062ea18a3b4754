"""Low-rank adapters: nothing changes at first, and merged they compute the same."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from tunix_core.errors import UsageError
from tunix_core.models import DecoderConfig, DecoderModel, MeshLayout, make_adapters
from tunix_core.models.paths import flatten

CONFIG = DecoderConfig(31, 16, 2, 4, 2, 4, 24, 64, tie_embeddings=True, qkv_bias=True, qk_norm=True)
MODEL = DecoderModel(CONFIG)
PARAMS = MODEL.init(0)
TOKENS = np.arange(12, dtype=np.int32).reshape(2, 6)


@jax.jit
def plain(params: Any) -> Any:
    return logits(MODEL, params)


def logits(model: Any, params: Any) -> Any:
    places = np.broadcast_to(np.arange(6, dtype=np.int32), TOKENS.shape)
    return model.logits(params, model.forward(params, TOKENS, places, np.full_like(TOKENS, 6)))


def moved(adapters: Any) -> Any:
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: leaf + rng.normal(0, 0.1, leaf.shape).astype(np.float32), adapters.first)


@pytest.fixture(scope="module")
def adapters() -> Any:
    return make_adapters(MODEL, rank=3, alpha=6.0, targets=("attention", "mlp"), seed=0)


def test_at_first_nothing_is_changed(adapters: Any) -> None:
    joined = adapters.join(adapters.first, PARAMS)
    np.testing.assert_allclose(jax.jit(lambda p: logits(adapters.model, p))(joined), plain(PARAMS), atol=2e-6)


def test_merged_they_compute_the_same_and_each_of_them_has_a_gradient(adapters: Any) -> None:
    given = moved(adapters)

    def value(low: Any) -> Any:
        out = logits(adapters.model, adapters.join(low, PARAMS))
        return out.std(), out

    (_, beside), gradient = jax.jit(jax.value_and_grad(value, has_aux=True))(given)
    np.testing.assert_allclose(beside, plain(adapters.merge(given, PARAMS)), atol=1e-5)
    assert np.abs(beside - plain(PARAMS)).max() > 0.1
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_they_are_of_the_rank_and_at_the_targets_asked_for() -> None:
    attention = make_adapters(MODEL, rank=2, alpha=1.0, targets=("attention",), seed=0)
    shapes = {path: leaf.shape for path, leaf in flatten(attention.first)}
    assert {path.split(".")[2] for path in shapes} == {"attention"}
    assert len(shapes) == 2 * 4 * 2
    assert (shapes["layers.1.attention.k_lora_a"], shapes["layers.1.attention.k_lora_b"]) == ((16, 2), (2, 8))


def test_on_a_mesh_they_lie_along_the_weights_they_stand_beside(adapters: Any) -> None:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1, 1), ("data", "fsdp", "tensor"))
    lies = dict(flatten(MeshLayout(mesh).of(adapters.first)))
    assert lies["layers.0.mlp.up_lora_a"].spec == jax.sharding.PartitionSpec("fsdp", None)
    assert lies["layers.0.mlp.up_lora_b"].spec == jax.sharding.PartitionSpec(None, "tensor")


def test_a_model_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"needs a decoder of tunix_core.models, and this is an object"):
        make_adapters(object(), rank=1, alpha=1.0, targets=("mlp",), seed=0)  # type: ignore[arg-type]
