"""One environment, driven: built, reset and stepped, with what it gives checked at the door.

The same three functions serve every isolation. They give a value, or an awaitable where the
environment is `async`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from tunix_core.envs.base import BaseTaskEnv, MaybeAwaitable, Payload, as_step_result, broken, then
from tunix_core.envs.messages import to_messages
from tunix_core.types import Message, Opening, StepResult, Task


def build(cls: Any, task: Task, max_steps: int | None, options: Mapping[str, Any]) -> BaseTaskEnv:
    """`cls(payload, max_steps=…, **options)`, with those options its constructor takes.

    `max_steps` is set afterwards where the constructor does not name it, since a constructor that
    passes its keywords on may fix the number itself.
    """
    given = accepted(cls, options)
    named = max_steps is not None and "max_steps" in _keywords(cls)[0]
    env = checked_env(cls(Payload(task), **({"max_steps": max_steps, **given} if named else given)))
    if max_steps is not None and not named and "max_steps" not in given:
        env.max_steps = max_steps
    return env


def accepted(fn: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `options` that `fn` takes."""
    names, takes_all = _keywords(getattr(fn, "__func__", fn))
    return {name: value for name, value in options.items() if takes_all or name in names}


@lru_cache(maxsize=256)
def _keywords(fn: Any) -> tuple[frozenset[str], bool]:
    """The names of `fn`'s parameters, and whether it takes any other keyword."""
    parameters = inspect.signature(fn).parameters
    return frozenset(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def checked_env(env: Any) -> BaseTaskEnv:
    """`env` itself. Raises EnvError, kind "env_contract", when it is no BaseTaskEnv."""
    if isinstance(env, BaseTaskEnv):
        return env
    raise broken(f"an environment must be a tunix_core.envs.BaseTaskEnv, not {type(env).__name__}")


def begin(env: BaseTaskEnv, seed: int) -> MaybeAwaitable:
    """Resets `env`: its Opening. A `reset` without a seed of its own is served as well."""
    if accepted(env.reset, {"seed": seed}):
        return then(env.reset(seed=seed), lambda value: _opening(env, value))
    env.start(seed)
    return then(env.reset(), lambda value: _opening(env, value))


def advance(env: BaseTaskEnv, action: Message) -> MaybeAwaitable:
    """One step of `env`: a StepResult whose observation is a tuple of messages."""
    return then(env.step(action), _result)


def _opening(env: BaseTaskEnv, value: Any) -> Opening:
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping)):
        raise broken(f"reset must give (observation, info), not {value!r:.200}")
    messages = to_messages(value[0])
    if not messages:
        raise broken(f"the first observation must say something, not {value[0]!r:.200}")
    return Opening(messages, tuple(plain(schema) for schema in env.tool_schemas), plain(value[1]))


def _result(value: Any) -> StepResult:
    result = as_step_result(value)
    shown, info = to_messages(result.observation), plain(result.info)
    return StepResult(shown, result.reward, result.terminated, result.truncated, info)


def plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping as JSON has it: arrays as lists, what has no JSON form as its `repr`."""
    if not value:
        return {}
    try:
        return json.loads(json.dumps(dict(value), default=_jsonable))
    except (TypeError, ValueError, RecursionError) as error:
        raise broken(f"info must survive JSON: {error}") from error


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else repr(value)
