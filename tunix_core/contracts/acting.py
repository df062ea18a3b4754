"""What acts: tasks, environments, sandboxes, rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tunix_core.types import Message, Opening, Score, Status, StepResult, Task


class TaskSource(Protocol):
    """Problems by index. `get(i)` is a pure function of i, so a cursor is an integer."""

    def get(self, index: int) -> Task: ...
    def __len__(self) -> int: ...  # raises TypeError when endless; see `tasks.length_of`


class Curriculum(Protocol):
    """Chooses the next task's index; state survives JSON.

    `next_index` is asked once per cursor, which only grows, and is a function of the state, the seed it
    was made with and the cursor. `length` is None for an endless source. `observe` tells what the samples
    of a task scored: after each step, in the order the tasks were chosen.
    """

    def next_index(self, cursor: int, length: int | None) -> int: ...
    def observe(self, index: int, scores: Sequence[float]) -> None: ...
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


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
