"""What samples: models, chat formats, engines, and the weights they take up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from tunix_core.types import Message, SampleId, Task

Params = Any  # pytrees of arrays
Cache = Any
Remat = Literal["none", "layers"]


class Tokenizer(Protocol):
    """Text to ids and back. Text never becomes a special token."""

    vocab_size: int

    def encode(self, text: str) -> np.ndarray: ...  # int32 [T]
    def decode(self, tokens: Sequence[int] | np.ndarray) -> str: ...  # special tokens are left out


class Rendering(NamedTuple):
    """Token ids to append to a conversation. `keep` < its length means its history was rewritten:
    the conversation forks after `keep` tokens."""

    tokens: np.ndarray
    keep: int


class Past(NamedTuple):
    """A conversation so far, for a chat format whose template wants to see all of it.

    Attributes:
        messages: every message, the assistant's last one included.
        tools: as they were at `open`.
        marks: where the policy was given the word on the current branch, oldest first: how many
            messages and how many ids stood before it spoke. The last is where the turn that ends
            the history began.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    marks: Sequence[tuple[int, int]]


class ChatFormat(Protocol):
    """A conversation as token ids, appended to and never re-rendered."""

    stop_tokens: tuple[int, ...]

    def open(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> np.ndarray:
        """The first messages, ready for the policy to speak: int32 [T]."""
        ...

    def extend(self, history: np.ndarray, messages: Sequence[Message], past: Past) -> Rendering:
        """After an assistant turn ended `history` (with or without its stop token): closes the turn
        if it is open, then renders `messages`, ready for the policy to speak again. What was sampled
        is never tokenized again, unless the history is rewritten."""
        ...

    def parse(self, tokens: np.ndarray) -> Message:
        """The assistant message that sampled `tokens` say; a call that can't be read carries its
        error. Never raises."""
        ...

    def say(self, message: Message) -> np.ndarray:
        """The ids a policy samples to say `message`, its stop token included: int32 [T]. What `parse` reads."""
        ...


class Model(Protocol):
    """A causal decoder as pure functions over a pytree of weights.

    Shapes: R rows, T tokens, S slots, L cache length, D width, V vocabulary.
    """

    vocab_size: int
    max_positions: int

    def init(self, seed: int) -> Params: ...
    def forward(self, params: Params, tokens: Any, positions: Any, seen_until: Any, remat: Remat = "none") -> Any:
        """[R, T] int32 each -> hidden [R, T, D].

        The token of column i attends to those of columns j <= i with seen_until[j] > i: in a row of
        segments that is where the segment ends. `remat` says what backward computes again instead of
        keeping it: only what is cheap, or each layer from its input.
        """
        ...

    def init_cache(self, slots: int, length: int) -> Cache:
        """One piece of a cache: a pytree of zeros; every leaf's leading axis is S, and the next one the heads that
        a mesh may split."""
        ...

    def forward_cached(
        self, params: Params, tokens: Any, positions: Any, slots: Any, cache: tuple[Cache, ...]
    ) -> tuple[Any, tuple[Cache, ...]]:
        """tokens, positions [R, T] of slots [R]; the cache in pieces, each going on where the one before it ends, L
        positions in all. Writes keys and values at `positions` of each row's slot, then attends to that slot's cache
        positions <= its own: rows of one slot see each other's earlier tokens. A position >= L writes nothing.
        -> hidden [R, T, D], cache."""
        ...

    def decode(
        self, params: Params, tokens: Any, positions: Any, cache: tuple[Cache, ...], fresh: Cache, step: Any
    ) -> tuple[Any, Cache]:
        """tokens, positions [S]: the `step`-th token of each slot since `cache` was last written to; -> hidden [S, D],
        fresh.

        `fresh` is a piece of its own, whose places are steps: `step` is written, those up to it are attended to, and
        of the cache the positions before the first step's. So one place is written for all slots at once.
        """
        ...

    def settle(self, cache: tuple[Cache, ...], fresh: Cache, positions: Any, counts: Any) -> tuple[Cache, ...]:
        """Writes the first `counts` [S] steps of `fresh` into the cache, from each slot's position [S] on."""
        ...

    def logits(self, params: Params, hidden: Any) -> Any:
        """[..., D] -> float32 [..., V]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A model with everything needed to talk to it."""

    id: str
    model: Model
    params: Params
    tokenizer: Tokenizer
    chat: ChatFormat


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    max_tokens bounds one turn, max_episode_tokens all sampled tokens of an episode (None: no bound).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 64
    max_episode_tokens: int | None = None

    @property
    def truncates(self) -> bool:
        """True when the distribution sampled from is not the whole one."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(frozen=True, slots=True, eq=False)
class GenerateRequest:
    """One continuation to sample.

    Attributes:
        prompt: int32 [T].
        seed: 64 bits; with the token's absolute position it alone decides the draw.
        stop_tokens: sampling one of these ends the turn (it is kept in the ids).
        stop_texts: the turn ends when its decoded text contains one of these.
    """

    prompt: np.ndarray
    sampling: Sampling
    seed: int
    max_tokens: int
    stop_tokens: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What was sampled. Arrays are [T], T >= 1.

    Attributes:
        tokens: int32, all that was sampled, the stop token included.
        logprobs: float32, of the distribution sampled from.
        full_logprobs: float32, of the tempered distribution before truncation.
        versions: int32, the policy version that sampled each token.
        finish_reason: "stop", "length" or "context".
        cached_tokens: how many prompt tokens came from the prefix cache.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    full_logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: str
    cached_tokens: int = 0


class Engine(Protocol):
    """Batched inference over token ids.

    What stands behind it need not be a model here: an engine that can't give log-probabilities says so, and only
    evaluates. `generate` raises ModelError when this request alone can't be served (it does not fit: the
    message has the numbers) and EngineError when the engine is lost. Cancelling it frees the slot.
    """

    gives_logprobs: bool
    max_context: int

    async def generate(self, request: GenerateRequest) -> Completion: ...
    async def start(self) -> None: ...
    async def aclose(self) -> None: ...
    def statistics(self) -> Mapping[str, float]: ...


class Weights(NamedTuple):
    """Parameters and the policy version they are."""

    version: int
    params: Params


class WeightSource(Protocol):
    """Where an engine finds the newest weights; reading never waits."""

    def latest(self) -> Weights: ...


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One episode to run.

    `seed` goes to the environment and is the same for all members of a group; the policy's draws
    follow from `run_seed` and `id`.
    """

    id: SampleId
    task: Task
    seed: int
    run_seed: int
    sampling: Sampling
    max_turns: int
