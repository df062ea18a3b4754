"""The Protocols the rooms know each other by.

Contracts are nouns; an implementation's name says its difference. Arrays of the accelerator are
`Any` here, so that this module never loads JAX: `Params`, `Cache` are pytrees of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from tunix_core.types import Group, Message, Opening, SampleId, Score, Status, StepResult, Task

Params = Any
Cache = Any


# ---- tasks -------------------------------------------------------------------------------------
class TaskSource(Protocol):
    """Problems by index. `get(i)` is a pure function of i, so a cursor is an integer."""

    def get(self, index: int) -> Task: ...
    def __len__(self) -> int: ...  # raises TypeError when endless; see `tasks.length_of`


class Curriculum(Protocol):
    """Chooses the next task's index; state survives JSON."""

    def next_index(self, cursor: int, length: int | None) -> int: ...
    def observe(self, index: int, scores: Sequence[float]) -> None: ...
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


# ---- environments --------------------------------------------------------------------------------
class EnvHandle(Protocol):
    """One open environment as the episode sees it: async, bounded in time, isolated.

    A step's observation is a tuple of messages. Whatever goes wrong raises errors.EnvError (or
    another EpisodeError).
    """

    async def reset(self, seed: int) -> Opening: ...
    async def step(self, action: Message) -> StepResult: ...
    async def close(self) -> None: ...  # idempotent; never raises


class EnvOpener(Protocol):
    """Builds the environment of one suite for a task. Opening does not call `reset`."""

    async def open(self, task: Task) -> EnvHandle: ...
    async def aclose(self) -> None: ...
    def statistics(self) -> Mapping[str, float]: ...


class Sandbox(Protocol):
    """Where untrusted code runs. Opened from an image with limits; see `sandboxes`."""

    async def exec(self, command: Sequence[str], *, timeout_s: float, **options: Any) -> Any: ...
    async def read(self, path: str) -> bytes: ...
    async def write(self, path: str, data: bytes) -> None: ...
    async def close(self) -> None: ...


# ---- rewards ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Episode:
    """What a reward may read of an episode. Survives pickling except for `sandbox`."""

    task: Task
    messages: tuple[Message, ...]
    step_rewards: tuple[float, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "terminated"
    stop_reason: str = "finished"
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    turns: int = 0
    sandbox: Sandbox | None = None

    @property
    def final_text(self) -> str:
        """The text of the policy's last message, or ""."""
        said = [m.text for m in self.messages if m.role == "assistant"]
        return said[-1] if said else ""


class Scorer(Protocol):
    """The rewards of one suite, weighted. A failing part makes the value None, with the reason;
    `score` itself does not raise."""

    async def score(self, episode: Episode) -> Score: ...
    async def score_group(self, episodes: Sequence[Episode], scores: Sequence[Score]) -> Sequence[Score]: ...
    async def aclose(self) -> None: ...


# ---- models --------------------------------------------------------------------------------------------
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


class Model(Protocol):
    """A causal decoder as pure functions over a pytree of weights.

    Shapes: R rows, T tokens, S slots, L cache length, D width, V vocabulary.
    """

    vocab_size: int
    max_positions: int

    def init(self, seed: int) -> Params: ...
    def forward(self, params: Params, tokens: Any, positions: Any, segment_ids: Any) -> Any:
        """[R, T] int32 each -> hidden [R, T, D]. A token attends to earlier tokens of its segment."""
        ...

    def init_cache(self, slots: int, length: int) -> Cache:
        """A pytree of zeros; every leaf's leading axis is S."""
        ...

    def forward_cached(self, params: Params, tokens: Any, positions: Any, cache: Cache) -> tuple[Any, Cache]:
        """tokens, positions [S, T]; writes keys and values at `positions` of each slot, then attends
        to cache positions <= its own. A position >= L writes nothing. -> hidden [S, T, D], cache."""
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


# ---- engine ---------------------------------------------------------------------------------------------
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

    `generate` raises ModelError when this request alone can't be served (it does not fit: the
    message has the numbers) and EngineError when the engine is lost. Cancelling it frees the slot.
    """

    gives_logprobs: bool
    max_context: int

    async def generate(self, request: GenerateRequest) -> Completion: ...
    async def start(self) -> None: ...
    async def aclose(self) -> None: ...
    def statistics(self) -> Mapping[str, float]: ...


# ---- weights ----------------------------------------------------------------------------------------------
class Weights(NamedTuple):
    """Parameters and the policy version they are."""

    version: int
    params: Params


class WeightSource(Protocol):
    """Where an engine finds the newest weights; reading never waits."""

    def latest(self) -> Weights: ...


# ---- rollout ------------------------------------------------------------------------------------------------
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


# ---- algorithms ------------------------------------------------------------------------------------------
class LossTerms(NamedTuple):
    """A loss as sums, so that micro-batches add up: loss = numerator / denominator over the step.

    `metrics` maps a name to (sum, count), both scalars; `maxima` a name to a scalar >= 0, of which the
    step reports the largest.
    """

    numerator: Any
    denominator: Any
    metrics: Mapping[str, tuple[Any, Any]]
    maxima: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One trajectory as its advantages are decided from. Arrays are [T]: its trained tokens, in order.

    Attributes:
        group: the index of its group within its suite.
        score: what it scored.
        parts: the parts of the score that have a value, by name.
        turns: int32, the turn each token belongs to.
        rewards: float64; what a turn earned stands at its last token, and all of them sum to the score.
        behaviour_logp: float32.
        advantages: float64; zeros until decided.
        reference_logp: float32, where the algorithm has `over_step` and `needs_reference`; else empty.
        values: float32, the critic's before the step, where there is one; else empty.
        returns: float64, what the critic is to learn; `over_step` puts it in.
        adaptive: the algorithm's adaptive numbers, by name.
    """

    suite: str
    group: int
    score: float
    parts: Mapping[str, float]
    turns: np.ndarray
    rewards: np.ndarray
    behaviour_logp: np.ndarray
    advantages: np.ndarray
    reference_logp: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    values: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    returns: np.ndarray = field(default_factory=lambda: np.empty(0, np.float64))
    adaptive: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many tokens are trained."""
        return len(self.turns)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A number that follows the run. A loss finds it in its batch by name, advantages in `Outcome.adaptive`.

    Attributes:
        update: (its value, the step's metrics of this algorithm) -> its next value.
    """

    name: str
    start: float
    update: Callable[[float, Mapping[str, float]], float]


@dataclass(frozen=True, slots=True)
class Critic:
    """How the values of states are learned, by a network of its own.

    Attributes:
        loss: (values float32 [R, T], batch with "returns" and "old_values" [R, T]) -> LossTerms. JAX.
        learning_rate: None: the policy's.
    """

    loss: Callable[[Any, Mapping[str, Any]], LossTerms]
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A pair of pure functions, advantages and loss; what follows them is for those who need more.

    Attributes:
        id: under which it was registered.
        advantages: float64 scores [G] (survivors of one group) -> float64 [G]. NumPy.
        loss: (logp float32 [R, T], batch as a mapping of jax arrays with the names of types.Batch,
            plus "old_logp" and "staleness", int32 [R, T]) -> LossTerms. JAX; traced under jit.
        needs_entropy: the loss wants batch["entropy"] [R, T].
        idle_at_zero: a token whose advantage is 0 has no gradient, whatever its log-probability, and its
            share of the denominator doesn't depend on it: the trainer counts it without computing it.
        needs_reference: the loss wants batch["reference_logp"] [R, T], the tokens' log-probabilities
            under the run's reference model.
        needs_proximal: it weighs tokens by exp(old_logp − behaviour_logp), so it means nothing where
            old_logp is the behaviour's.
        scores: the survivors of one group -> float64 [G], given to `advantages` in the scores' place.
        over_step: all the step's outcomes, their advantages by group decided -> the same, in order, with
            the advantages (and returns) to train on. Gradients wait until the step is whole.
        together: what a group has to train lies in one micro-batch; batch["group_ids"] tells groups apart.
        adaptive: numbers that change from step to step.
        critic: learns what `over_step` puts into `returns`; needs `over_step`.
    """

    id: str
    advantages: Callable[[np.ndarray], np.ndarray]
    loss: Callable[[Any, Mapping[str, Any]], LossTerms]
    needs_entropy: bool = False
    idle_at_zero: bool = False
    needs_reference: bool = False
    needs_proximal: bool = False
    scores: Callable[[Sequence[Outcome]], np.ndarray] | None = None
    over_step: Callable[[Sequence[Outcome]], Sequence[Outcome]] | None = None
    together: bool = False
    adaptive: tuple[Adaptive, ...] = ()
    critic: Critic | None = None


# ---- trainer ------------------------------------------------------------------------------------------------
class Learner(Protocol):
    """Turns groups into new weights. Methods block; call them off the event loop."""

    version: int

    def accumulate(self, group: Group) -> None:
        """Takes a group into the step; computes gradients whenever a micro-batch is full."""
        ...

    def apply(self) -> Mapping[str, float]:
        """Flushes what is pending, takes the optimizer step, and gives the step's metrics."""
        ...

    def weights(self) -> Weights: ...


# ---- observers --------------------------------------------------------------------------------------------------
class Hooks(Protocol):
    """Calls the observers, each isolated, and the decisions; see `hookspecs`.

    `collect` is `notify` that gives (plugin's name, answer) for each answer other than None. What a
    decision raises goes to the caller.
    """

    def notify(self, hook: str, **arguments: Any) -> None: ...
    def collect(self, hook: str, **arguments: Any) -> Sequence[tuple[str, Any]]: ...
    def decide(self, hook: str, **arguments: Any) -> Any: ...


class Tracker(Protocol):
    """Where metrics go besides the run directory."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """Where in a run a hook is called."""

    run_dir: Path | None = None
    suite: str = ""
    sample: SampleId | None = None
    step: int | None = None
    env: str = ""
