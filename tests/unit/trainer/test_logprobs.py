"""Log-probabilities a few tokens at a time against those from all logits at once: values and gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.trainer import logprobs
from tunix_core.trainer.logprobs import token_logprobs

ROWS, LENGTH, VOCAB, WIDTH = 3, 40, 23, 6


def forward(params: Any, tokens: Any, positions: Any, seen_until: Any, remat: Any = "none") -> Any:
    return jnp.tanh(params["embed"][tokens] + params["place"][positions])


def logits(params: Any, hidden: Any) -> Any:
    return 30 * jnp.tanh(hidden @ params["embed"].T * params["scale"] / 30)


MODEL: Any = SimpleNamespace(forward=forward, logits=logits)


@pytest.fixture(scope="module")
def params() -> Any:
    rng = np.random.default_rng(0)
    shapes = {"embed": (VOCAB, WIDTH), "place": (LENGTH, WIDTH), "scale": ()}
    return {name: jnp.asarray(1 + rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def batch_of(seed: int, share: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    column = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (ROWS, LENGTH))
    mask = (rng.random((ROWS, LENGTH)) < share).astype(np.float32)
    mask[0] = 0
    mask[:, 0] = 0
    return {
        "tokens": rng.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32),
        "positions": column,
        "before": np.maximum(column - rng.integers(1, 4, (ROWS, LENGTH)), 0).astype(np.int32),
        "seen_until": np.full((ROWS, LENGTH), LENGTH, np.int32),
        "mask": mask,
        "temperature": rng.uniform(0.3, 2.0, (ROWS, LENGTH)).astype(np.float32),
    }


def dense(params: Any, batch: Any) -> tuple[Any, Any]:
    hidden = forward(params, batch["tokens"], batch["positions"], batch["seen_until"])
    states = jnp.take_along_axis(hidden, batch["before"][..., None], axis=1)
    logp = jax.nn.log_softmax(logits(params, states) / batch["temperature"][..., None])
    chosen = jnp.take_along_axis(logp, batch["tokens"][..., None], axis=-1)[..., 0]
    return chosen * batch["mask"], -jnp.sum(jnp.exp(logp) * logp, axis=-1) * batch["mask"]


@pytest.mark.parametrize(("at_once", "entropy_slope"), [(9, True), (10_000, False)])
def test_values_and_gradients_are_the_dense_ones(
    params: Any, monkeypatch: pytest.MonkeyPatch, at_once: int, entropy_slope: bool
) -> None:
    monkeypatch.setattr(logprobs, "AT_ONCE", at_once)
    weights = np.random.default_rng(1).normal(size=(2, ROWS, LENGTH)).astype(np.float32)

    def of(fn: Any) -> Any:
        def total(params: Any, batch: Any) -> Any:
            logp, entropy = fn(params, batch)
            entropy = entropy if entropy_slope else jax.lax.stop_gradient(entropy)
            return jnp.sum(logp * weights[0] + entropy * weights[1]), (logp, entropy)

        return jax.jit(jax.value_and_grad(total, has_aux=True))

    chunked, whole = of(lambda p, b: token_logprobs(MODEL, p, b, entropy_slope=entropy_slope)), of(dense)
    for seed, share in enumerate((0.0, 0.2, 1.0)):
        batch = batch_of(seed, share)
        (_, found), gradient = chunked(params, batch)
        (_, wanted), expected = whole(params, batch)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)
        difference, size = (
            np.sqrt(sum(float(jnp.sum(jnp.square(each))) for each in jax.tree.leaves(tree)))
            for tree in (jax.tree.map(jnp.subtract, gradient, expected), expected)
        )
        assert difference <= 1e-5 * size


def test_many_lots_of_bfloat16_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many equal terms as a sum in bfloat16 would stop growing under."""
    length = 600
    params = {"embed": jnp.full((VOCAB, WIDTH), 0.5, jnp.bfloat16), "head": jnp.ones((WIDTH, VOCAB), jnp.bfloat16)}
    model: Any = SimpleNamespace(
        forward=lambda params, tokens, *_: params["embed"][tokens],
        logits=lambda params, hidden: (hidden @ params["head"]).astype(jnp.float32),
    )
    row = np.zeros((1, length), np.int32)
    batch = dict.fromkeys(("tokens", "positions", "before", "seen_until"), row)
    batch |= dict.fromkeys(("mask", "temperature"), np.ones((1, length), np.float32))

    def gradient(at_once: int) -> np.ndarray:
        monkeypatch.setattr(logprobs, "AT_ONCE", at_once)
        found = jax.jit(jax.grad(lambda p: jnp.sum(token_logprobs(model, p, batch)[0])))(params)
        return np.asarray(found["head"], np.float32)

    one_by_one, together = gradient(1), gradient(length)
    assert np.linalg.norm(one_by_one - together) < 0.01 * np.linalg.norm(together)


def test_logits_of_all_tokens_exist_at_no_time(params: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No array of the program, in either direction, is as large as tokens · vocabulary."""
    monkeypatch.setattr(logprobs, "AT_ONCE", 9)
    batch = batch_of(0, 1.0)
    run = jax.jit(jax.grad(lambda p: sum(map(jnp.sum, token_logprobs(MODEL, p, batch)))))
    text = run.lower(params).as_text()
    assert f"tensor<{ROWS}x{9 // ROWS}x{VOCAB}x" in text
    assert f"tensor<{ROWS}x{LENGTH}x{VOCAB}x" not in text
