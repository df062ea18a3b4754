"""An engine that says what a test tells it to, at the speed a test asks for.

Takes requests by the contract `Engine`; gives completions with log-probabilities, versions and
latency. Knows no model and loads no JAX; on `testing.clock` its latency costs no real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from tunix_core.contracts import Completion, GenerateRequest, Weights, WeightSource
from tunix_core.errors import EngineError, ModelError

_DRAWS = 8191
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
        self._room = asyncio.Semaphore(slots) if slots else None
        self._weights = version_source or FixedWeights()
        self._closed = False
        self._counts = dict.fromkeys(("requests", "completed", "tokens", "waiting", "active", "max_active"), 0)
        # So that a log-probability is a function of the seed and the token's absolute position, as an engine's is.
        self._draws = _log_draws(_DRAWS + max_context)

    async def start(self) -> None:
        self._closed = False

    async def aclose(self) -> None:
        """Requests in flight fail with EngineError at their next token."""
        self._closed = True

    def statistics(self) -> Mapping[str, float]:
        """requests, completed, tokens; waiting and active now; max_active ever."""
        return {name: float(count) for name, count in self._counts.items()}

    async def generate(self, request: GenerateRequest) -> Completion:
        self._check_open()
        tokens, reason = self._sampled(request)
        self._counts["requests"] += 1
        versions = await (self._decode(len(tokens)) if self._room is None else self._in_slot(self._room, len(tokens)))
        self._counts["completed"] += 1
        first = (request.seed + len(request.prompt)) % _DRAWS
        logprobs = self._draws[first : first + len(tokens)]
        return Completion(tokens, logprobs, logprobs, versions, reason)

    async def _in_slot(self, room: asyncio.Semaphore, count: int) -> np.ndarray:
        self._counts["waiting"] += 1
        try:
            await room.acquire()
        finally:
            self._counts["waiting"] -= 1
        try:
            return await self._decode(count)
        finally:
            room.release()

    async def _decode(self, count: int) -> np.ndarray:
        counts = self._counts
        counts["active"] = active = counts["active"] + 1
        if active > counts["max_active"]:
            counts["max_active"] = active
        try:
            await asyncio.sleep(0)  # a real engine never answers without giving others a turn
            return await self._token_by_token(count) if self._token_s else self._at_once(count)
        finally:
            counts["active"] -= 1

    def _at_once(self, count: int) -> np.ndarray:
        self._check_open()
        self._counts["tokens"] += count
        return _all_of(self._weights.latest().version, count)

    async def _token_by_token(self, count: int) -> np.ndarray:
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
        return np.asarray(said[:bound], np.int32), cut_by if len(said) > bound else "stop"

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


@lru_cache(maxsize=256)
def _all_of(version: int, count: int) -> np.ndarray:
    """int32 [count], read-only."""
    versions = np.full(count, version, np.int32)
    versions.flags.writeable = False
    return versions


def _log_draws(length: int) -> np.ndarray:
    """float32 [length], read-only: log-probabilities, the same again after _DRAWS."""
    draws = np.log(np.random.default_rng(0).uniform(0.05, 1.0, _DRAWS)).astype(np.float32)
    repeated = np.resize(draws, length)
    repeated.flags.writeable = False
    return repeated
