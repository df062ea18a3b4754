"""What passes through the doors between rooms.

Every type here is frozen: nobody mutates what they received. Arrays are NumPy; nothing here
knows JAX, an environment, or a plugin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "eval"]
Status = Literal["terminated", "truncated", "failed"]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of a suite. Survives JSON: `Task.from_json(task.to_json()) == task`.

    Attributes:
        id: unique within its source and split; a plain string.
        payload: what the environment receives as `self.task`.
        split: "train" or "eval"; the two never overlap.
        difficulty: any number that grows with difficulty, or None when unknown.
        gold: the reference answer for graders; never shown to the policy.
    """

    id: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    split: Split = "train"
    difficulty: float | None = None
    gold: Any = None

    def to_json(self) -> str:
        """The task as one line of JSON. Raises TypeError when a value has no JSON form."""
        return json.dumps(
            {
                "id": self.id,
                "payload": dict(self.payload),
                "split": self.split,
                "difficulty": self.difficulty,
                "gold": self.gold,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class TextPart:
    """A run of text inside a message."""

    text: str


Part = TextPart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the policy wrote it.

    Attributes:
        name: the tool's name, "" when it could not be read.
        arguments: a mapping, or the raw text when it could not be read.
        id: names the call within its turn; the tool's answer carries it back.
        error: why the call could not be read, or None. A call with an error is never executed:
            the environment answers it with the reason.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `content` is a tuple of parts, never a bare string."""

    role: Role
    content: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, role: Role, text: str, **fields: Any) -> Self:
        """A message of plain text: `Message.of("user", "hello")`."""
        return cls(role, (TextPart(text),) if text else (), **fields)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join([part.text for part in self.content])


@dataclass(frozen=True, slots=True)
class Opening:
    """What `reset` gives: the first messages, and the tools the policy may call.

    Attributes:
        messages: the conversation so far (system and user messages, usually).
        tools: JSON schemas in the function-calling form
            `{"name": str, "description": str, "parameters": {...}}`.
        info: anything the environment wants recorded; survives JSON.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, init=False)
class StepResult:
    """What one step of an environment gives.

    Attributes:
        observation: text, a Message, a sequence of Messages, or None.
        reward: this step's reward; the environment's own score is the sum over steps.
        terminated: the episode reached its natural end.
        truncated: the episode was cut (steps, tokens, time); `info["truncated_by"]` says which.
        info: anything to record; survives JSON.

    `StepResult(observation, reward, done, info)` and the keyword `done` are accepted from code
    written for four-field results; `done` means `terminated`.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]

    def __init__(
        self,
        observation: Any = None,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool | Mapping[str, Any] = False,
        info: Mapping[str, Any] | None = None,
        *,
        done: bool | None = None,
    ) -> None:
        if isinstance(truncated, Mapping):  # the four-field form: the fourth place is info
            truncated, info = False, truncated
        put = object.__setattr__
        put(self, "observation", observation)
        put(self, "reward", reward)
        put(self, "terminated", terminated if done is None else done)
        put(self, "truncated", truncated)
        put(self, "info", info or {})

    @property
    def done(self) -> bool:
        """True when the episode is over, for either reason."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True, eq=False)
class TokenSpan:
    """A run of tokens born together: all sampled by a policy, or all forced on it.

    Attributes:
        tokens: int32 [T].
        sampled: True when the policy sampled them; only these are trained.
        logprobs: float32 [T], of the distribution truly sampled from; zeros where forced.
        versions: int32 [T], the policy version that sampled each token; -1 where forced.
        turn: the assistant turn this belongs to, from 0.
        branch: a conversation whose history was rewritten forks; each branch is a whole row, and
            what it repeats of an earlier branch is forced there (a token is trained once).
        agent: whose tokens these are.
    """

    tokens: np.ndarray
    sampled: bool
    logprobs: np.ndarray
    versions: np.ndarray
    turn: int = 0
    branch: int = 0
    agent: str = "policy"

    @classmethod
    def forced(cls, tokens: Sequence[int] | np.ndarray, **fields: Any) -> Self:
        ids = np.asarray(tokens, np.int32)
        return cls(ids, False, *_unsampled(len(ids)), **fields)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Score:
    """A number or None, with its parts by name.

    Attributes:
        value: the weighted sum of the parts; None when any part is None (the sample leaves its
            group before the statistics).
        parts: each part's own value.
        failure: why the value is None, when it is.
    """

    value: float | None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    failure: Failure | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in one episode, attributed to one boundary.

    Attributes:
        kind: one word of the failure vocabulary (see `errors`), e.g. "env_raised".
        boundary: where it happened, e.g. "env.step".
        message: the error, in one line.
        retry: whether a fresh attempt may go better.
    """

    kind: str
    boundary: str
    message: str
    retry: bool = False


@dataclass(frozen=True, slots=True)
class SampleId:
    """Names one attempt at one member of one group, for the whole run.

    `group` follows the suite's task order, never arrival. `attempt` counts fresh environments.
    """

    suite: str
    group: int
    sample: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.suite}#{self.group}.{self.sample}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Row:
    """One branch of a trajectory as flat arrays, each [T], aligned to the token they speak of."""

    tokens: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    turns: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One episode, whole: what was said, what was sampled, what it scored, how it ended.

    Attributes:
        status: "terminated", "truncated" (stop_reason says by what) or "failed" (see failure).
        stop_reason: "finished", "max_turns", "max_tokens", "context", "deadline", or a failure's kind.
        step_rewards: one per environment step.
        score: None until scored.
        timing: seconds by name ("env", "engine", "reward", "total").
    """

    id: SampleId
    env: str
    task: Task
    seed: int
    spans: tuple[TokenSpan, ...] = ()
    messages: tuple[Message, ...] = ()
    step_rewards: tuple[float, ...] = ()
    turns: int = 0
    status: Status = "terminated"
    stop_reason: str = "finished"
    failure: Failure | None = None
    score: Score | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """True when this may be trained on: it has a score and at least one sampled token."""
        scored = self.score is not None and self.score.value is not None
        return scored and any([span.sampled and span.tokens.size for span in self.spans])

    @property
    def sampled_tokens(self) -> int:
        return sum([span.tokens.size for span in self.spans if span.sampled])

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version among the sampled tokens, or None without any."""
        oldest = [min(span.versions.tolist()) for span in self.spans if span.sampled and span.versions.size]
        return min(oldest, default=None)

    def rows(self) -> Iterator[Row]:
        """Each branch as one row of flat arrays."""
        for branch in sorted({span.branch for span in self.spans}):
            yield _flatten([span for span in self.spans if span.branch == branch])

    def scored(self, score: Score) -> Trajectory:
        return self if score is self.score else replace(self, score=score)


def _flatten(spans: Sequence[TokenSpan]) -> Row:
    return Row(
        tokens=np.concatenate([s.tokens for s in spans]),
        mask=np.concatenate([np.full(len(s), s.sampled and s.agent == "policy", np.float32) for s in spans]),
        logprobs=np.concatenate([s.logprobs for s in spans]),
        versions=np.concatenate([s.versions for s in spans]),
        turns=np.concatenate([np.full(len(s), s.turn, np.int32) for s in spans]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The samples of one task, together. Known by (suite, index), never by position or text."""

    suite: str
    index: int
    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def survivors(self) -> tuple[Trajectory, ...]:
        return tuple(t for t in self.trajectories if t.usable)

    @property
    def has_signal(self) -> bool:
        """True when the survivors' scores differ, so that a group baseline leaves something."""
        return len({t.score.value for t in self.survivors if t.score}) > 1


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A packed micro-batch. Every array is aligned to the token it speaks of; row length T, R rows.

    Attributes:
        tokens: int32 [R, T].
        positions: int32 [R, T]; how many tokens precede it in its conversation.
        segment_ids: int32 [R, T]; 0 is padding, segments of a row count from 1. What shares a prefix is one.
        before: int32 [R, T]; the column of the token before it, its own where there is none.
        seen_until: int32 [R, T]; the token is followed by those of the columns from its own to this one, and
            by no others: they attend to it. 0 in padding.
        sequence_ids: int32 [R, T]; the index of the trajectory in [0, N), shared by its branches; of one of
            them where several share the token; N marks padding.
        group_ids: int32 [R, T]; shared by the sequences of a group that were packed as one: all of it where
            its algorithm wants groups together; N marks padding.
        mask: float32 [R, T]; 1 where a sampled token is trained.
        behaviour_logp: float32 [R, T], log-probability under the distribution sampled from.
        advantages: float32 [R, T].
        versions: int32 [R, T]; -1 where forced or padding.
        temperature: float32 [R, T], at which the token's suite samples; 1 in padding.
        sequences: N, the static bound on sequences in one batch.
    """

    tokens: np.ndarray
    positions: np.ndarray
    segment_ids: np.ndarray
    before: np.ndarray
    seen_until: np.ndarray
    sequence_ids: np.ndarray
    group_ids: np.ndarray
    mask: np.ndarray
    behaviour_logp: np.ndarray
    advantages: np.ndarray
    versions: np.ndarray
    temperature: np.ndarray
    sequences: int


@lru_cache(maxsize=1024)
def _unsampled(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and versions of forced tokens: read-only, and shared, since every turn has some."""
    logprobs, versions = np.zeros(length, np.float32), np.full(length, -1, np.int32)
    logprobs.flags.writeable = versions.flags.writeable = False
    return logprobs, versions


def staleness(trained_at: int, sampled: int) -> int:
    """How many versions behind a token is: the version its gradient is taken at − the one that sampled it."""
    return trained_at - sampled


def within_bound(oldest_version: int, trained_at: int, max_staleness: int) -> bool:
    """Whether a trajectory whose oldest token is of `oldest_version` may be trained at version `trained_at`.

    The one rule for admission, the queue and the trainer.
    """
    return staleness(trained_at, oldest_version) <= max_staleness


def derive_seed(*parts: int | str) -> int:
    """64 bits that depend on every part and on nothing else; the same on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
