"""A model small enough to differentiate by hand, and groups made of nothing but numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.types import Group, SampleId, Score, Task, TokenSpan, Trajectory

VOCAB, WIDTH, POSITIONS = 11, 6, 64


@dataclass
class TinyModel:
    """A causal mean over the segment, then one hidden layer. Counts how often `forward` is traced."""

    vocab_size: int = VOCAB
    max_positions: int = POSITIONS
    traces: list[tuple[int, ...]] = field(default_factory=list)

    def init(self, seed: int) -> dict[str, jax.Array]:
        rng = np.random.default_rng(seed)
        shapes = {"embed": (VOCAB, WIDTH), "place": (POSITIONS, WIDTH), "mix": (WIDTH, WIDTH), "head": (WIDTH, VOCAB)}
        return {name: jnp.asarray(rng.normal(size=shape) * 0.5, jnp.float32) for name, shape in shapes.items()}

    def forward(self, params: Any, tokens: Any, positions: Any, seen_until: Any, remat: Any = "none") -> Any:
        self.traces.append(tokens.shape)
        x = params["embed"][tokens] + params["place"][positions]
        order = jnp.arange(tokens.shape[1])
        seen = (order[:, None] >= order[None, :]) & (order[:, None] < seen_until[:, None, :])
        mean = jnp.einsum("rts,rsd->rtd", seen / jnp.maximum(seen.sum(-1, keepdims=True), 1), x)
        return x + jnp.tanh(mean @ params["mix"])

    def logits(self, params: Any, hidden: Any) -> Any:
        return hidden @ params["head"]

    def init_cache(self, slots: int, length: int) -> Any:
        raise NotImplementedError("training needs no cache")

    def forward_cached(self, params: Any, tokens: Any, positions: Any, slots: Any, cache: Any) -> Any:
        raise NotImplementedError("training needs no cache")

    def decode(self, params: Any, tokens: Any, positions: Any, cache: Any, fresh: Any, step: Any) -> Any:
        raise NotImplementedError("training needs no cache")

    def settle(self, cache: Any, fresh: Any, positions: Any, counts: Any) -> Any:
        raise NotImplementedError("training needs no cache")


def logprobs(params: Any, tokens: Sequence[int], temperature: float = 1.0) -> np.ndarray:
    """NumPy reference, float64 [T]: each token's log-probability given those before it; 0 for the first."""
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    x = p["embed"][list(tokens)] + p["place"][: len(tokens)]
    mean = np.cumsum(x, axis=0) / np.arange(1, len(tokens) + 1)[:, None]
    logits = (x + np.tanh(mean @ p["mix"])) @ p["head"] / temperature
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.array([0.0, *(logp[t - 1, tokens[t]] for t in range(1, len(tokens)))])


def span(tokens: Sequence[int], sampled: bool, *, logp: float = -1.0, version: int = 0, branch: int = 0) -> TokenSpan:
    ids = np.asarray(tokens, np.int32)
    if not sampled:
        return TokenSpan.forced(ids, branch=branch)
    return TokenSpan(
        ids, True, np.full(len(ids), logp, np.float32), np.full(len(ids), version, np.int32), branch=branch
    )


def trajectory(
    spans: Sequence[TokenSpan], score: float | None, *, suite: str = "s", group: int = 0, sample: int = 0
) -> Trajectory:
    named = SampleId(suite, group, sample)
    return Trajectory(named, "x/env", Task("t"), 0, tuple(spans), score=Score(score))


def group(trajectories: Sequence[Trajectory], *, suite: str = "s", index: int = 0) -> Group:
    return Group(suite, index, Task(f"t{index}"), tuple(trajectories))


def random_group(seed: int, *, suite: str = "s", size: int = 4, version: int = 0, longest: int = 14) -> Group:
    """Prompt, answer, observation, answer; scores that differ."""
    rng = np.random.default_rng(seed)
    members = []
    for sample in range(size):
        lengths = rng.integers(1, max(longest // 4, 2), size=4)
        parts = [rng.integers(0, VOCAB, size=int(n)).tolist() for n in lengths]
        spans = [span(p, i % 2 == 1, logp=-float(rng.uniform(1, 3)), version=version) for i, p in enumerate(parts)]
        members.append(trajectory(spans, sample / size + 0.1, suite=suite, group=seed, sample=sample))
    return group(members, suite=suite, index=seed)


@pytest.fixture(scope="session")
def model() -> TinyModel:
    return TinyModel()


@pytest.fixture
def make() -> Any:
    """The builders above, for tests that can't import this file."""
    return SimpleNamespace(logprobs=logprobs, span=span, trajectory=trajectory, group=group, random_group=random_group)
