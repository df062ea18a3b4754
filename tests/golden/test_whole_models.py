"""Whole models against the figures that make_model_figures.py made; each needs its model fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.contracts import Policy
from tunix_core.models import open_policy
from tunix_core.models.cache import fetched, is_fetched

HERE = Path(__file__).parent
CHUNK = 32  # every prompt is fed in pieces of this length, padded: one compilation

pytestmark = pytest.mark.slow


def opened(name: str) -> Policy:
    if not is_fetched(name):
        pytest.skip(f"the model {name} isn't fetched; run: tunix model fetch {name}")
    return open_policy(fetched(name), "float32")


@pytest.fixture(scope="module")
def smollm2() -> Policy:
    return opened("smollm2-135m")


def figures(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def scored(policy: Policy, ids: list[int], length: int) -> np.ndarray:
    """Log-probability of each id but the first; the row is padded to `length`."""
    model: Any = policy.model
    row = np.zeros((1, length), np.int32)
    row[0, : len(ids)] = ids
    until = np.full((1, length), len(ids), np.int32)

    @jax.jit
    def run(params: Any) -> jax.Array:
        hidden = model.forward(params, row, np.arange(length, dtype=np.int32)[None], until)
        shares = jax.nn.log_softmax(model.logits(params, hidden[0, : len(ids) - 1]))
        return jnp.take_along_axis(shares, jnp.asarray(ids[1:])[:, None], 1)[:, 0]

    return np.asarray(run(policy.params))


def test_log_probabilities_of_fixed_texts(smollm2: Policy) -> None:
    for text in figures("smollm2")["texts"]:
        np.testing.assert_allclose(scored(smollm2, text["ids"], 64), text["logprobs"], atol=2e-3)


def test_greedy_continuations(smollm2: Policy) -> None:
    step = greedy_step(smollm2.model)
    for prompt in figures("smollm2")["prompts"]:
        assert continued(smollm2, step, prompt["ids"], len(prompt["next"])) == prompt["next"]


def greedy_step(model: Any) -> Callable[..., Any]:
    """(params, tokens [1, T], positions [1, T], cache, n) -> the likeliest id after token n, and the cache."""

    @jax.jit
    def step(params: Any, tokens: Any, positions: Any, cache: Any, n: Any) -> Any:
        hidden, cache = model.forward_cached(params, tokens, positions, np.zeros(1, np.int32), cache)
        return model.logits(params, hidden[0, n]).argmax(), cache

    return step


def continued(policy: Policy, step: Callable[..., Any], ids: list[int], count: int) -> list[int]:
    assert len(ids) <= CHUNK
    row = np.zeros((1, CHUNK), np.int32)
    row[0, : len(ids)] = ids
    places = np.where(np.arange(CHUNK) < len(ids), np.arange(CHUNK), 2 * CHUNK + count).astype(np.int32)[None]
    token, cache = step(policy.params, row, places, (policy.model.init_cache(1, CHUNK + count),), len(ids) - 1)
    said = [int(token)]
    for position in range(len(ids), len(ids) + count - 1):
        here = np.full((1, 1), position, np.int32)
        token, cache = step(policy.params, np.full((1, 1), said[-1], np.int32), here, cache, 0)
        said.append(int(token))
    return said


def test_the_perplexity_of_a_fixed_text_under_gemma3() -> None:
    expected = figures("gemma3")
    ids = expected["ids"]
    found = np.exp(-scored(opened("gemma3-270m"), ids, len(ids)).mean())
    assert abs(found / expected["perplexity"] - 1) < 0.005
