"""An engine that says what a test tells it to, at the speed a test asks for.

Takes requests by the contract `Engine`; gives completions with log-probabilities, versions and
latency. Knows no model and loads no JAX; on `testing.clock` its latency costs no real time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache

import numpy as np

from tunix_core.contracts import Completion, GenerateRequest, Weights, WeightSource
from tunix_core.errors import EngineError, ModelError

_GOLDEN = 0x9E3779B97F4A7C15
Reply = Callable[[GenerateRequest], Sequence[int]]


class FixedWeights:
    """A weight source a test moves by hand: `source.version = 3`."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def latest(self) -> Weights:
        return Weights(self.version, None)


class FakeEngine:
    """An Engine without a model.

    Args:
        reply: `(request) -> token ids`; what it raises, `generate` raises. Or a sequence of replies,
            given one per request in the order of arrival. A reply that fits and has none of the
            request's stop tokens is ended with the first of them.
        tokens_per_s: how fast each slot decodes; None: at once.
        slots: how many requests decode at a time; None: all.
        version_source: read at each token for the policy version; None: always version 0.
        max_context: prompt and sampled tokens of one request.
    """

    gives_logprobs = True

    def __init__(
        self,
        reply: Reply | Sequence[Sequence[int]],
        *,
        tokens_per_s: float | None = None,
        slots: int | None = None,
        version_source: WeightSource | None = None,
        max_context: int = 4096,
    ) -> None:
        self.max_context = max_context
        self._reply = reply if callable(reply) else _Script(reply)
        self._token_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._room = asyncio.Semaphore(slots) if slots else nullcontext()
        self._weights = version_source or FixedWeights()
        self._closed = False
        self._counts: Counter[str] = Counter()

    async def start(self) -> None:
        self._closed = False

    async def aclose(self) -> None:
        """Requests in flight fail with EngineError at their next token."""
        self._closed = True

    def statistics(self) -> Mapping[str, float]:
        """requests, completed, tokens; waiting and active now; max_active ever."""
        names = ("requests", "completed", "tokens", "waiting", "active", "max_active")
        return {name: float(self._counts[name]) for name in names}

    async def generate(self, request: GenerateRequest) -> Completion:
        self._check_open()
        tokens, reason = self._sampled(request)
        self._counts["requests"] += 1
        with _Counted(self._counts, "waiting") as waiting:
            async with self._room:
                waiting.stop()
                with _Counted(self._counts, "active"):
                    self._counts["max_active"] = max(self._counts["max_active"], self._counts["active"])
                    versions = await self._decode(len(tokens))
        self._counts["completed"] += 1
        logprobs = _logprobs(request.seed, len(request.prompt), len(tokens))
        return Completion(tokens, logprobs, logprobs.copy(), versions, reason)

    async def _decode(self, count: int) -> np.ndarray:
        await asyncio.sleep(0)  # a real engine never answers without giving others a turn
        if not self._token_s:
            self._check_open()
            self._counts["tokens"] += count
            return np.full(count, self._weights.latest().version, np.int32)
        versions = np.empty(count, np.int32)
        for position in range(count):
            await asyncio.sleep(self._token_s)
            self._check_open()
            versions[position] = self._weights.latest().version
            self._counts["tokens"] += 1
        return versions

    def _sampled(self, request: GenerateRequest) -> tuple[np.ndarray, str]:
        room = self.max_context - len(request.prompt)
        if room < 1:
            raise ModelError(
                f"a prompt of {len(request.prompt)} tokens leaves no room in max_context={self.max_context}; "
                "shorten it or raise max_context",
                retry=False,
            )
        said = self._reply(request)
        if request.stop_tokens:
            stops = [place for place, token in enumerate(said) if token in request.stop_tokens]
            said = said[: stops[0] + 1] if stops else [*said, request.stop_tokens[0]]
        if not len(said):
            raise EngineError("the reply has no token, and the request no stop token to end it with")
        bound = min(request.max_tokens, room)
        cut_by = "length" if request.max_tokens <= room else "context"
        return np.array(said[:bound], np.int32), cut_by if len(said) > bound else "stop"

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed; call start() first")


class _Script:
    def __init__(self, replies: Sequence[Sequence[int]]) -> None:
        self._replies, self._next = replies, 0

    def __call__(self, request: GenerateRequest) -> Sequence[int]:
        if self._next == len(self._replies):
            raise EngineError(f"the script has {len(self._replies)} replies, and one more was asked for")
        self._next += 1
        return self._replies[self._next - 1]


class _Counted:
    """Counts something while it lasts, whatever ends it."""

    def __init__(self, counts: Counter[str], name: str) -> None:
        self._counts, self._name, self._on = counts, name, False

    def __enter__(self) -> _Counted:
        self._counts[self._name] += 1
        self._on = True
        return self

    def stop(self) -> None:
        if self._on:
            self._counts[self._name] -= 1
            self._on = False

    def __exit__(self, *_: object) -> None:
        self.stop()


@lru_cache(maxsize=64)
def _multiples(count: int) -> np.ndarray:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def _logprobs(seed: int, start: int, count: int) -> np.ndarray:
    """float32 [count]: a function of the seed and each token's absolute position, as an engine's draws are.

    The draws are splitmix64's (Steele et al., 2014), at the seed plus the position.
    """
    mixed = np.uint64((seed + start * _GOLDEN) % 2**64) + _multiples(count)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53
    return np.log(0.05 + 0.95 * uniform).astype(np.float32)
