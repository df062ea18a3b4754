"""Adapters trained beside frozen weights, and float32 masters of what computes in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.algorithms import centred, policy_gradient, ratio_objective
from tunix_core.config import TrainerConfig
from tunix_core.models import DecoderConfig, DecoderModel, make_adapters
from tunix_core.trainer import Checkpoints, Trainer, make_parts

SIZES = DecoderConfig(11, 16, 1, 2, 1, 8, 24, 64)
CONFIG = TrainerConfig(rows=2, row_tokens=32, learning_rate=0.05, optimizer="sgd", warn_disagreement=None)
ALGORITHM = policy_gradient("x/plain", centred, ratio_objective)


@pytest.fixture(scope="module", autouse=True)
def compiled_fast() -> Iterator[None]:
    """These programs run a few times each: optimizing them would never be earned back."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def trainer(model: Any, params: Any, config: TrainerConfig = CONFIG, **how: Any) -> Trainer:
    return Trainer(model, params, {"s": ALGORITHM}, config, steps=9, **how)


def step(learner: Trainer, make: Any, seed: int = 0) -> Any:
    learner.accumulate(make.random_group(seed))
    return learner.apply()


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float32)) for leaf in jax.tree.leaves(tree)])


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_adapters_alone_are_trained_published_and_saved_and_merged_they_are_the_policy(
    make: Any, tmp_path: Path
) -> None:
    model = DecoderModel(SIZES)
    params = model.init(0)
    adapters = make_adapters(model, rank=1, alpha=2.0, targets=("mlp",), seed=0)
    learner, whole = trainer(model, params, adapters=adapters), trainer(model, params)
    assert step(learner, make)["loss"] == pytest.approx(step(whole, make)["loss"], abs=1e-6)  # they begin as nothing
    second, unmoved = step(learner, make, 1), step(trainer(model, params), make, 1)
    assert second["loss"] != pytest.approx(unmoved["loss"], abs=1e-9)
    given = learner.weights().params
    assert jax.tree.structure(given) == jax.tree.structure(adapters.first)
    pairs = zip(jax.tree.leaves(given), jax.tree.leaves(adapters.first), strict=True)
    assert all(np.any(moved != first) for moved, first in pairs)
    np.testing.assert_array_equal(flat(params), flat(model.init(0)))

    merged = trainer(model, adapters.merge(given, params))
    assert step(merged, make, 2)["loss"] == pytest.approx(step(learner, make, 2)["loss"], rel=1e-4)

    state = learner.state()
    assert flat(state.params).size == flat(adapters.first).size < flat(params).size / 10
    saved = Checkpoints(tmp_path).save(1, state.params, state.optimizer, {})
    again = Checkpoints(tmp_path).restore_params(1, make_parts(params, "float32", adapters).trained)
    np.testing.assert_array_equal(flat(again), flat(state.params))
    assert size_of(saved / "params") < size_of(Checkpoints(tmp_path / "all").save(1, params, params, {}) / "params")


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.02), ("nf4", 0.15)])
def test_beside_a_base_in_few_bits_they_learn_as_beside_what_it_stands_for(make: Any, kind: Any, most: float) -> None:
    model = DecoderModel(SIZES)
    params = model.init(0)
    few, plain = (
        make_adapters(model, rank=2, alpha=2.0, targets=("attention", "mlp"), seed=0, base=base)
        for base in (kind, "model")
    )
    base = few.base(params)
    stands_for = few.merge(few.first, base)
    learner = trainer(model, base, adapters=few)
    beside = trainer(model, stands_for, adapters=plain)
    for seed in range(2):
        assert step(learner, make, seed)["loss"] == pytest.approx(step(beside, make, seed)["loss"], rel=1e-5)
    moved, wanted = flat(learner.weights().params), flat(beside.weights().params)
    start = flat(few.first)
    assert np.linalg.norm(moved - wanted) < 1e-5 * np.linalg.norm(wanted - start) != 0
    np.testing.assert_array_equal(flat(base), flat(few.base(params)))
    assert 0 < np.linalg.norm(flat(stands_for) - flat(params)) < most * np.linalg.norm(flat(params))
    assert learner.memory()["parameters"] < 0.6 * beside.memory()["parameters"]


def test_what_is_trained_in_bfloat16_keeps_the_types_it_began_with(make: Any) -> None:
    """So that it can be resumed, and an update compiles once."""
    model = DecoderModel(replace(SIZES, dtype="bfloat16"))
    learner = trainer(model, model.init(0), replace(CONFIG, optimizer="adamw", master="model"))
    before = jax.tree.map(lambda leaf: leaf.dtype, learner.state().optimizer)
    step(learner, make, 0)
    assert jax.tree.map(lambda leaf: leaf.dtype, learner.state().optimizer) == before


def test_masters_are_float32_where_the_model_computes_in_bfloat16(make: Any) -> None:
    model = DecoderModel(replace(SIZES, dtype="bfloat16"))
    tiny = replace(CONFIG, learning_rate=1e-5, optimizer="adam")
    learner, coarse = (trainer(model, model.init(0), replace(tiny, master=kept)) for kept in ("float32", "model"))
    first = flat(model.init(0))
    for seed in range(2):
        step(learner, make, seed)
        step(coarse, make, seed)
    masters, given = learner.state().params, learner.weights().params
    assert {leaf.dtype for leaf in jax.tree.leaves(masters)} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(given)} == {jnp.dtype("bfloat16")}
    np.testing.assert_array_equal(flat(jax.tree.map(lambda a: a.astype("bfloat16"), masters)), flat(given))
    # Two steps of 1e-5 are lost in the rounding of most bfloat16 weights; the masters keep them.
    moved, kept = (flat(masters) != first).mean(), (flat(coarse.state().params) != first).mean()
    assert moved > 0.9 > 0.5 > kept


def test_a_float32_model_needs_no_masters_beside_its_weights() -> None:
    params = DecoderModel(SIZES).init(0)
    parts = make_parts(params, "float32")
    assert parts.all_as_computed
    learner = trainer(DecoderModel(SIZES), params)
    pairs = zip(jax.tree.leaves(learner.weights().params), jax.tree.leaves(learner.state().params), strict=True)
    assert all(a.unsafe_buffer_pointer() == b.unsafe_buffer_pointer() for a, b in pairs)
