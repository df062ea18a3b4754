"""The class environments are written on: `BaseTaskEnv`.

Takes a task and a seed, gives observations and rewards. Knows nothing of who plays it or where it runs.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from types import CoroutineType, NoneType
from typing import Any, Self, SupportsFloat

import numpy as np

from tunix_core.contracts import Sandboxes
from tunix_core.errors import EnvError, UsageError
from tunix_core.types import Message, Opening, StepResult, Task

EnvStepResult = StepResult
_PLAIN = frozenset({StepResult, Opening, tuple, str, float, int, NoneType})
MaybeAwaitable = Any  # a value, or an awaitable of it


class Payload(dict[str, Any]):
    """A task's payload as a dict of its own, which still knows the whole task."""

    def __init__(self, whole: Task) -> None:
        super().__init__(copy.deepcopy(dict(whole.payload)))
        self.whole = whole


class BaseTaskEnv:
    """An environment of one task. Subclasses write `_initial_observation` and `_step_impl`.

    Each template method is a `def` or an `async def`; `reset`, `step` and `close` then give a value
    or an awaitable of it. A blocking `def` never blocks others: a suite runs it off the event loop.

    Args:
        task: a `Task`, or its payload as a dict.
        reward_fn: `(task=payload, action=answer) -> number`, or an object with `.reward` and
            `.metadata`; see `_grade`.
        max_steps: the step after which an episode that has not ended is truncated.
        **kwargs: kept in `extra_kwargs`.

    Attributes:
        task: the payload, a dict that belongs to this environment alone.
        full_task: the whole `Task`, with `id`, `gold` and `difficulty`.
        seed, rng: set by `reset` before `_initial_observation`. All chance comes from `rng`, a NumPy
            Generator; the same task and seed give the same episode.
        step_count: steps taken since `reset`, the current one included.
        sandboxes: where to open sandboxes, when the spec `requires` them: `await self.sandboxes.open(…)`, from
            an `async` environment. What it opened is closed after `close` at the latest. The first that is
            open is what rewards see as `episode.sandbox`.
        find_tool: id -> what a plugin registered as that tool, for `tools.as_tool`.
    """

    sandboxes: Sandboxes | None = None

    def __init__(
        self,
        task: Task | Mapping[str, Any] | None = None,
        *,
        reward_fn: Callable[..., Any] | None = None,
        max_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        payload = Payload(task) if isinstance(task, Task) else {} if task is None else task
        self.task: dict[str, Any] = payload if isinstance(payload, dict) else dict(payload)
        self.full_task = payload.whole if isinstance(payload, Payload) else Task(id="", payload=self.task)
        self.reward_fn = reward_fn
        self.max_steps = max_steps
        self.extra_kwargs = kwargs
        self.step_count = 0
        self.seed: int | None = None
        self._closed = False

    # ---- written by the subclass -------------------------------------------------------------------
    def _initial_observation(self) -> MaybeAwaitable:
        """The first observation: text, a Message, a sequence of Messages; see `to_messages`."""
        raise NotImplementedError(f"{type(self).__name__} must define _initial_observation(self)")

    def _step_impl(self, action: Any) -> MaybeAwaitable:
        """One step: what `action` brings, as a StepResult (a 4- or 5-tuple is accepted)."""
        raise NotImplementedError(f"{type(self).__name__} must define _step_impl(self, action)")

    def _close(self) -> MaybeAwaitable:
        """Releases what the episode holds. Called at most once, also after a failed `reset`."""

    def _grade(self, answer: str) -> MaybeAwaitable:
        """The reward of a final answer: a number, or an object with `.reward`; 0 without a `reward_fn`."""
        return 0.0 if self.reward_fn is None else self.reward_fn(task=self.task, action=answer)

    @property
    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """What the policy may call: `{"name", "description", "parameters"}` each."""
        return ()

    def find_tool(self, identity: str, /) -> Any:
        """What a plugin registered under a tool's id. Whoever opens the environment puts the hub's in its place."""
        raise UsageError(f"tool {identity!r}: this environment was opened without a hub; set env.find_tool first")

    def decode(self, message: Message) -> Any:
        """The action that `_step_impl` receives for what the policy said: here, its text."""
        return message.text

    # ---- called by whoever runs the episode ----------------------------------------------------------
    def reset(self, seed: int | None = None) -> MaybeAwaitable:
        """Begins an episode: (observation, info). Without a seed, chance is fresh."""
        self.start(seed)
        return then(self._initial_observation(), lambda observation: (observation, {}))

    def step(self, action: Any) -> MaybeAwaitable:
        """One step, as a StepResult.

        Args:
            action: the policy's Message, or directly what `decode` would give.

        Raises:
            EnvError: kind "env_contract" when `_step_impl` gives something else than a step's result.
        """
        self.step_count += 1
        action = self.decode(action) if isinstance(action, Message) else action
        return then(self._step_impl(action), self._bounded)

    def close(self) -> MaybeAwaitable:
        """Ends the episode and releases what it holds. Only the first call does anything."""
        if self._closed:
            return None
        self._closed = True
        return self._close()

    def start(self, seed: int | None) -> None:
        """Sets `seed`, `rng` and `step_count` for a new episode."""
        self.seed, self.step_count = seed, 0
        self.__dict__.pop("rng", None)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Made when it is first asked for: many environments leave nothing to chance."""
        return np.random.default_rng(self.seed)

    @classmethod
    def from_dict(cls, env_args: Mapping[str, Any]) -> Self:
        """The environment whose constructor takes `env_args` as keywords."""
        return cls(**env_args)

    def _bounded(self, value: Any) -> StepResult:
        result = as_step_result(value)
        if result.done or self.step_count < self.max_steps:
            return result
        return replace_result(result, truncated=True, info={**result.info, "truncated_by": "max_steps"})


def then(value: MaybeAwaitable, do: Callable[[Any], Any]) -> MaybeAwaitable:
    """`do(value)`: now, or as an awaitable when `value` is one (`do` may give an awaitable as well)."""
    return _later(value, do) if is_awaitable(value) else do(value)


async def _later(value: Awaitable[Any], do: Callable[[Any], Any]) -> Any:
    result = do(await value)
    return await result if is_awaitable(result) else result


def is_awaitable(value: Any) -> bool:
    """`inspect.isawaitable`, without its questions for what an environment gives most often."""
    kind = type(value)
    return kind is CoroutineType or (kind not in _PLAIN and inspect.isawaitable(value))


def broken(message: str) -> EnvError:
    """The error of an environment that does not keep its contract; a fresh one would not either."""
    return EnvError(message, kind="env_contract", retry=False)


def as_step_result(value: Any) -> StepResult:
    """A step's result from a StepResult, (obs, reward, done, info) or (obs, reward, terminated, truncated, info).

    Raises:
        EnvError: kind "env_contract" for another type, or a reward that is not a finite number.
    """
    if (
        type(value) is StepResult
        and type(value.info) is dict
        and type(value.reward) is float
        and math.isfinite(value.reward)
        and type(value.terminated) is type(value.truncated) is bool
    ):
        return value  # most often
    if isinstance(value, tuple) and len(value) in (4, 5):
        value = StepResult(*value)
    if not isinstance(value, StepResult):
        raise broken(f"a step must give a StepResult or a 4- or 5-tuple, not {type(value).__name__}: {value!r:.200}")
    if not isinstance(value.info, Mapping):
        raise broken(f"a step's info must be a mapping, not {type(value.info).__name__}: {value.info!r:.200}")
    return replace_result(value, reward=as_number(value.reward, "a step's reward"))


def replace_result(result: StepResult, **changes: Any) -> StepResult:
    """`result` with some fields changed and its flags as plain bools."""
    fields = {name: getattr(result, name) for name in ("observation", "reward", "terminated", "truncated", "info")}
    fields.update(changes)
    return StepResult(**{**fields, "terminated": bool(fields["terminated"]), "truncated": bool(fields["truncated"])})


def as_number(value: Any, what: str) -> float:
    """`value` as a finite float. Raises EnvError, kind "env_contract", naming `what` it is."""
    try:
        # The protocol's own check takes longer than all the rest of a step.
        number = float(value) if type(value) in (float, int) or isinstance(value, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return number
    raise broken(f"{what} must be a finite number, not {value!r:.200}")


def graded(value: Any) -> tuple[float, dict[str, Any]]:
    """A reward and its details, from a number or an object with `.reward` and `.metadata` (or `.info`)."""
    if isinstance(value, SupportsFloat):
        return as_number(value, "a reward"), {}
    reward = getattr(value, "reward", None)
    details = getattr(value, "metadata", None) or getattr(value, "info", None) or {}
    return as_number(reward, f"the reward of a {type(value).__name__}"), dict(details)


__all__ = [
    "BaseTaskEnv",
    "EnvStepResult",
    "Payload",
    "as_number",
    "as_step_result",
    "broken",
    "graded",
    "is_awaitable",
    "then",
]
