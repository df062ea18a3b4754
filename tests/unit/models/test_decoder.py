from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.errors import UsageError
from tunix_core.models.config import DecoderConfig
from tunix_core.models.decoder import DecoderModel

CONFIG = DecoderConfig(
    vocab_size=61, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=48, max_positions=64
)
SLOTS, LENGTH = 32, 48


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    return DecoderModel(CONFIG)


@pytest.fixture(scope="module")
def params(model: DecoderModel) -> dict:
    return model.init(3)


@pytest.fixture(scope="module")
def forward(model: DecoderModel):
    return jax.jit(model.forward)


@pytest.fixture(scope="module")
def cached(model: DecoderModel):
    """A row for each slot."""
    return jax.jit(
        lambda params, ids, at, cache: model.forward_cached(params, ids, at, jnp.arange(len(ids), dtype=int), cache)
    )


def pieces(model: DecoderModel, slots: int, lengths: Sequence[int] = (16, LENGTH - 16)) -> tuple[Any, ...]:
    return tuple(model.init_cache(slots, length) for length in lengths)


def tokens(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, (rows, length), np.int32)


def positions(rows: int, length: int) -> np.ndarray:
    return np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))


def test_weights_are_a_function_of_the_seed(model: DecoderModel, params: dict) -> None:
    again, other = model.init(3), model.init(4)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, again))
    assert not (params["layers"]["0"]["attention"]["q"] == other["layers"]["0"]["attention"]["q"]).any()
    assert jax.tree.map(lambda a: (a.shape, a.dtype), params) == jax.tree.map(
        lambda a: (a.shape, a.dtype), model.shapes
    )


@pytest.mark.parametrize("chunks", [(40,), (16, 16, 8), (16, 16, 1, 1, 1, 1, 1, 1, 1, 1)])
def test_the_cache_gives_what_a_whole_pass_gives(model, params, forward, cached, chunks: tuple[int, ...]) -> None:
    ids, at = tokens(2, 40), positions(2, 40)
    whole = forward(params, ids, at, np.full((2, 40), 40))
    cache, parts, start = pieces(model, 2), [], 0
    for size in chunks:
        hidden, cache = cached(params, ids[:, start : start + size], at[:, start : start + size], cache)
        parts.append(hidden)
        start += size
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-4)


def test_rows_of_one_slot_at_once_give_the_bits_of_one_after_another(model, params) -> None:
    """A conversation over both pieces in chunks of eight, with a shorter one between them."""
    step, ids, other = jax.jit(model.forward_cached), tokens(4, 8, seed=1), tokens(1, 8, seed=2)
    at, nowhere = np.arange(32, dtype=np.int32).reshape(4, 8), np.full((4, 8), LENGTH, np.int32)
    slots = np.array([2, 2, 0, 2], np.int32)
    ids[2], at[2], at[3] = other, np.arange(8), np.arange(16, 24)
    hidden, together = step(params, ids, at, slots, pieces(model, 3))
    parts, one_by_one = np.zeros(hidden.shape, np.float32), pieces(model, 3)
    for row in range(4):
        alone = np.where(np.arange(4)[:, None] == row, at, nowhere)
        got, one_by_one = step(params, ids, alone, slots, one_by_one)
        parts[row] = got[row]
    np.testing.assert_array_equal(np.asarray(hidden), parts)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), together, one_by_one)


def test_a_piece_that_is_not_reached_gives_the_bits_of_one_that_is_masked(model, params, cached) -> None:
    """Rows at 12 beside one that reaches the second piece, and without it; the second piece is never zero."""
    cache = jax.tree.map(lambda a: a + 3.0, pieces(model, 4))
    ids = tokens(4, 1)
    near, far = np.full((4, 1), 12, np.int32), np.array([[12], [12], [12], [30]], np.int32)
    alone, beside = (np.asarray(cached(params, ids, at, cache)[0])[:3] for at in (near, far))
    np.testing.assert_array_equal(alone, beside)


def test_decoding_a_row_is_the_same_to_the_bit_in_every_slot_and_company(model, params, cached) -> None:
    rng = np.random.default_rng(1)
    cache = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape, np.float32)), pieces(model, SLOTS))
    ids, at = tokens(SLOTS, 1), rng.integers(0, LENGTH, (SLOTS, 1)).astype(np.int32)
    step = jax.jit(lambda p, t, at, c: model.logits(p, cached(p, t, at, c)[0]))
    expected = np.asarray(step(params, ids, at, cache))
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(SLOTS)
        moved = step(params, ids[order], at[order], jax.tree.map(lambda a, o=order: a[o], cache))
        np.testing.assert_array_equal(np.asarray(moved), expected[order])
    for slot in (0, 5, 31):
        others = np.arange(SLOTS) != slot
        company = jax.tree.map(lambda a, o=others: a.at[o].set(7.5), cache)
        alone = step(params, np.where(others[:, None], 9, ids), np.where(others[:, None], LENGTH, at), company)
        np.testing.assert_array_equal(np.asarray(alone)[slot], expected[slot])


def test_a_prefilled_row_is_the_same_to_the_bit_in_every_slot(model, params, cached) -> None:
    ids, at = tokens(8, 16), positions(8, 16)
    hidden, cache = cached(params, ids, at, pieces(model, 8))
    order = np.roll(np.arange(8), 3)
    moved, moved_cache = cached(params, ids[order], at, pieces(model, 8))
    np.testing.assert_array_equal(np.asarray(moved), np.asarray(hidden)[order])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)[order]), moved_cache, cache)


def test_a_position_past_the_cache_writes_nothing_and_stays_finite(model, params, cached) -> None:
    before = jax.tree.map(lambda a: a + 1.0, pieces(model, 2))
    far = np.full((2, 16), LENGTH, np.int32)
    far[1] = np.iinfo(np.int32).max
    hidden, after = cached(params, tokens(2, 16), far, before)
    assert np.isfinite(hidden).all()
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), after, before)


def test_every_leaf_of_the_cache_has_the_slots_first(model) -> None:
    assert {leaf.shape[0] for leaf in jax.tree.leaves(model.init_cache(5, LENGTH))} == {5}


def test_segments_of_a_packed_row_do_not_see_each_other(params, forward) -> None:
    first, second = tokens(1, 16, seed=1), tokens(1, 24, seed=2)
    packed = np.concatenate([first, second], axis=1)
    at = np.concatenate([positions(1, 16), positions(1, 24)], axis=1)
    until = np.repeat(np.array([[16, 40]], np.int32), [16, 24], axis=1)
    hidden = forward(params, packed, at, until)
    np.testing.assert_allclose(
        hidden[:, :16], forward(params, first, positions(1, 16), np.full_like(first, 16)), atol=1e-5
    )
    np.testing.assert_allclose(
        hidden[:, 16:], forward(params, second, positions(1, 24), np.full_like(second, 24)), atol=1e-5
    )


def test_no_token_sees_a_later_one(params, forward) -> None:
    ids = tokens(2, 40)
    changed = np.where(np.arange(40) < 20, ids, (ids + 1) % CONFIG.vocab_size)
    at, until = positions(2, 40), np.full((2, 40), 40)
    before, after = forward(params, ids, at, until), forward(params, changed, at, until)
    np.testing.assert_array_equal(np.asarray(before)[:, :20], np.asarray(after)[:, :20])
    assert (np.asarray(before)[:, 20:] != np.asarray(after)[:, 20:]).any()


def test_padding_gives_finite_values_and_gradients(model, params) -> None:
    ids, at = tokens(2, 16), positions(2, 16)
    until = np.zeros((2, 16), np.int32)
    until[0, :5] = 5

    def loss(p: dict) -> jax.Array:
        return jax.nn.log_softmax(model.logits(p, model.forward(p, ids, at, until)))[0, :5, 3].sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_what_is_computed_again_changes_no_gradient() -> None:
    model = DecoderModel(replace(CONFIG, layers=4))
    params, ids, at = model.init(0), tokens(2, 16), positions(2, 16)
    until = np.full((2, 16), 16)

    def gradient(how: Any) -> Any:
        def loss(p: dict) -> jax.Array:
            return jnp.sum(jnp.square(model.forward(p, ids, at, until, how)))

        return jax.jit(jax.grad(loss)).lower(params).compile()

    kept, again = gradient("none"), gradient("layers")
    assert 1.5 * again.memory_analysis().temp_size_in_bytes < kept.memory_analysis().temp_size_in_bytes
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4), again(params), kept(params))


@pytest.mark.parametrize("backward", [False, True])
def test_the_sines_of_rotary_positions_are_computed_once_for_all_layers(model, params, backward: bool) -> None:
    ids, at, until = tokens(2, 16), positions(2, 16), np.full((2, 16), 16)

    def loss(params: dict, at: Any) -> jax.Array:
        return model.forward(params, ids, at, until).sum()

    program = jax.jit(jax.grad(loss) if backward else loss).lower(params, at).compile().as_text()
    assert CONFIG.layers > 1 and program.count(" cosine(") == program.count(" sine(") == 1


def test_tied_embeddings_have_no_output_layer() -> None:
    tied = DecoderModel(DecoderConfig(11, 8, 1, 2, 1, 4, 8, 16, tie_embeddings=True))
    params = tied.init(0)
    assert "head" not in params
    hidden = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    np.testing.assert_allclose(tied.logits(params, hidden), hidden @ np.asarray(params["embedding"]).T, rtol=1e-5)


def test_computation_in_bfloat16_gives_float32_logits() -> None:
    model = DecoderModel(DecoderConfig(11, 8, 1, 2, 1, 4, 8, 16, dtype="bfloat16"))
    params = model.init(0)
    ones = np.ones((1, 4), np.int32)
    hidden = jax.eval_shape(model.forward, params, ones, positions(1, 4), ones)
    assert (hidden.dtype, jax.eval_shape(model.logits, params, hidden).dtype) == (jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"heads": 3}, "must divide"),
        ({"head_dim": 7}, "even"),
        ({"layers": 0}, "layers is 0"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change: dict, expected: str) -> None:
    values = dict(vocab_size=11, width=8, layers=1, heads=4, kv_heads=2, head_dim=4, mlp_width=8, max_positions=16)
    with pytest.raises(UsageError, match=expected):
        DecoderConfig.from_dict({**values, **change})


def test_a_config_with_a_size_missing_is_refused() -> None:
    with pytest.raises(UsageError, match="'width' is missing"):
        DecoderConfig.from_dict({"vocab_size": 11})


def test_steps_kept_fresh_and_settled_later_give_what_a_whole_pass_gives(model, params, forward, cached) -> None:
    """Slots at other positions, one of them across the edge of a piece, and one that stops early."""
    ids, starts, counts = tokens(3, 40), np.array([9, 14, 20], np.int32), np.array([6, 6, 2], np.int32)
    whole = np.asarray(forward(params, ids, positions(3, 40), np.full((3, 40), 40)))
    at = np.where(positions(3, 40) < starts[:, None], positions(3, 40), LENGTH)
    _, cache = cached(params, ids, at, pieces(model, 3))
    fresh, rows, step = model.init_cache(3, 6), np.arange(3), jax.jit(model.decode)
    for i in range(6):
        hidden, fresh = step(params, ids[rows, starts + i], starts + i, cache, fresh, i)
        np.testing.assert_allclose(hidden, whole[rows, starts + i], atol=1e-4)
    settled = jax.jit(model.settle)(cache, fresh, starts, counts)
    at = np.where(positions(3, 40) < (starts + counts)[:, None], positions(3, 40), LENGTH)
    _, expected = cached(params, ids, at, pieces(model, 3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), settled, expected)


def test_a_slot_that_drew_nothing_is_settled_as_it_was(model) -> None:
    cache = jax.tree.map(lambda a: a + 1.0, pieces(model, 2))
    fresh = jax.tree.map(lambda a: a + 2.0, model.init_cache(2, 4))
    settled = model.settle(cache, fresh, np.array([3, LENGTH], np.int32), np.zeros(2, np.int32))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), settled, cache)
