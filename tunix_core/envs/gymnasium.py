"""Any registered Gymnasium environment with discrete actions and a small observation, played in text.

Takes a Gymnasium id; gives a `GymnasiumEnv`. What can't be played this way is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tunix_core.envs.base import BaseTaskEnv
from tunix_core.envs.drive import plain
from tunix_core.errors import UsageError, did_you_mean
from tunix_core.types import StepResult, Task

MAX_NUMBERS = 64  # of a Box observation shown as text

# The meaning of actions 0, 1, … as each environment's documentation has it.
_ACTIONS = {
    "Acrobot": ("negative", "none", "positive"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "LunarLander": ("nothing", "left", "main", "right"),
    "MountainCar": ("left", "none", "right"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}
# Built-in families that need more than Gymnasium, and built-in names with continuous actions.
_NOT_LISTED = ("mujoco", "box2d", "phys2d", "tabular")
_CONTINUOUS = ("Pendulum", "MountainCarContinuous")


class GymnasiumEnv(BaseTaskEnv):
    """A Gymnasium environment whose observations are text and whose actions are words or numbers.

    An answer's last action name or number is the action. An answer with none costs a turn and says
    what is expected. Rewards, termination and truncation are Gymnasium's own.

    Args:
        task: its payload's "env" is the Gymnasium id, unless `name` is given.
        name: a Gymnasium id; "module:id" imports the module that registers it first.
        actions: names of the actions, in order; default: known names, else numbers only.
        make: keyword arguments for `gymnasium.make`.
        max_steps: turns.
    """

    def __init__(
        self,
        task: Task | Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        actions: Sequence[str] = (),
        make: Mapping[str, Any] | None = None,
        max_steps: int = 200,
        **kwargs: Any,
    ) -> None:
        super().__init__(task, max_steps=max_steps, **kwargs)
        self.name: str = name or self.task["env"]
        self._names, self._make = actions, make
        self._env: gymnasium.Env[Any, Any] | None = None
        self._actions: dict[str, int] = {}
        self._expected = ""

    def _initial_observation(self) -> str:
        self._close()
        self._env = open_gymnasium(self.name, self._make)
        names = action_names(self._env, self.name, self._names)
        self._actions = {name.lower(): index for index, name in enumerate(names)}
        self._expected = f"Answer {_listed(names, self._env.action_space)}."
        observation, _ = self._env.reset(seed=self.seed)
        return f"{self.name}. {self._expected}\n{self._shown(observation)}"

    def _step_impl(self, action: str) -> StepResult:
        assert self._env, "step comes after reset"
        space: Any = self._env.action_space
        index = last_action(action, self._actions, int(space.n))
        if index is None:
            return StepResult(self._expected, info={"invalid_action": True})
        observation, reward, terminated, truncated, info = self._env.step(space.dtype.type(index + space.start))
        cut = {"truncated_by": "time_limit"} if truncated else {}
        return StepResult(self._shown(observation), float(reward), terminated, truncated, {**plain(info), **cut})

    def _shown(self, observation: Any) -> str:
        assert self._env
        return as_text(observation, self._env.observation_space)

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


def check_gymnasium(name: str, *, actions: Sequence[str] = (), make: Mapping[str, Any] | None = None) -> None:
    """Opens an environment once and closes it. Raises UsageError, with the reason, when it can't be played."""
    env = open_gymnasium(name, make)
    try:
        action_names(env, name, actions)
    finally:
        env.close()


def open_gymnasium(name: str, make: Mapping[str, Any] | None = None) -> gymnasium.Env[Any, Any]:
    """`gymnasium.make(name, **make)`, checked to be playable in text.

    Raises:
        UsageError: an unknown id, a missing dependency (with its pip line), refused arguments,
            continuous actions, or an observation that has no short text.
    """
    module, _, registered = name.rpartition(":")
    try:
        if module:
            import_module(module)
        if registered not in gymnasium.registry:
            raise UsageError(f"gymnasium has no {registered!r}.{did_you_mean(registered, list(gymnasium.registry))}")
        env = gymnasium.make(registered, disable_env_checker=True, **(make or {}))
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise UsageError(_missing(name, error)) from error
    except (TypeError, gymnasium.error.Error) as error:
        raise UsageError(f"gymnasium can't make {name!r} with {dict(make or {})}: {error}") from error
    reason = _unplayable(env)
    if reason:
        env.close()
        raise UsageError(f"gym/{name} can't be played in text: {reason}")
    return env


def action_names(env: gymnasium.Env[Any, Any], name: str, given: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the actions, in order; () when only numbers are known.

    Raises:
        UsageError: when `given` doesn't name each action once.
    """
    count = int(env.action_space.n)  # type: ignore[attr-defined]
    if given and (len(given) != count or len({one.lower() for one in given}) != count):
        raise UsageError(f"{name} has {count} actions; option actions={list(given)!r} must name each of them once")
    known = _ACTIONS.get(name.rpartition(":")[2].partition("-v")[0], ())
    return tuple(given) or (known if len(known) == count else ())


def last_action(text: str, names: Mapping[str, int], count: int = 0) -> int | None:
    """The action an answer ends with: the last of `names` (lower case) or, below `count`, of the numbers.

    Both must stand as words of their own, in any case; a number out of range is no action.
    """
    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
    number = r"(?<![\w.'-])\d+(?![\w']|\.\d)" if count else r"(?!)"
    found = re.findall(rf"(?<![\w'])(?:{words})(?![\w'])|{number}", text.lower())
    if not found:
        return None
    if found[-1] in names:
        return names[found[-1]]
    return int(found[-1]) if len(found[-1]) < 10 and int(found[-1]) < count else None


def as_text(observation: Any, space: Any) -> str:
    """An observation in a line: text as it is, numbers with four digits, parts with spaces between."""
    if isinstance(space, spaces.Tuple):
        return " ".join(as_text(part, inner) for part, inner in zip(observation, space.spaces, strict=True))
    if isinstance(space, spaces.Box):
        return " ".join(f"{number:.4g}" for number in np.asarray(observation).ravel())
    return str(observation)


def playable_ids() -> list[str]:
    """Registered ids that can likely be played: the newest version of each, without constructing any."""
    newest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        if _likely(spec):
            held = newest.get((spec.namespace, spec.name))
            if held is None or (spec.version or 0) > (held.version or 0):
                newest[spec.namespace, spec.name] = spec
    return sorted(spec.id for spec in newest.values())


def _likely(spec: Any) -> bool:
    if not isinstance(spec.entry_point, str):  # a function that raises, in place of what was removed
        return False
    built_in = spec.entry_point.startswith("gymnasium.")
    return not built_in or (spec.entry_point.split(".")[2] not in _NOT_LISTED and spec.name not in _CONTINUOUS)


def _unplayable(env: gymnasium.Env[Any, Any]) -> str:
    """Why an environment can't be played in text, or ""."""
    if not isinstance(env.action_space, spaces.Discrete):
        return f"its actions are {env.action_space}, and only Discrete actions can be named"
    return _untellable(env.observation_space)


def _untellable(space: Any) -> str:
    if isinstance(space, spaces.Tuple):
        return next(filter(None, map(_untellable, space.spaces)), "")
    if isinstance(space, spaces.Box):
        count = int(np.prod(space.shape))
        if count <= MAX_NUMBERS:
            return ""
        kind = "an image" if len(space.shape) == 3 else "an array"
        return f"its observation is {kind} of {count} numbers, and at most {MAX_NUMBERS} can be shown"
    if isinstance(space, spaces.Discrete | spaces.Text):
        return ""
    return f"its observation is {space}, and only Text, Discrete, small Box, and Tuple of these are shown"


def _missing(name: str, error: Exception) -> str:
    said = f"gym/{name} needs a package that isn't installed: {error}"
    if "pip install" in said or not (isinstance(error, ImportError) and error.name):
        return said
    return f"{said}. Try: pip install {error.name.partition('.')[0]}"


def _listed(names: Sequence[str], space: Any) -> str:
    if not names:
        return f"a number from 0 to {int(space.n) - 1}"
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
