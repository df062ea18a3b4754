"""A plugin file: the quickstart's environments, each step of which sleeps first."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import Any

import tunix_env_games.plugin
import tunix_env_math.plugin

from tunix_core import EnvSpec, hookimpl
from tunix_core.specs import load_target

SLEEP_S = 0.25
ASLEEP = ("games/frozen-lake", "math/arithmetic", "math/calculator")
_specs: list[EnvSpec] = []
for _plugin in (tunix_env_games.plugin, tunix_env_math.plugin):
    _plugin.tunix_register_envs(_specs.append)


def __getattr__(name: str) -> Any:
    """The class of the environment whose id ends in `name`, asleep before each step."""
    found = [spec for spec in _specs if spec.id in ASLEEP and spec.id.endswith(f"/{name}")]
    if not found:
        raise AttributeError(name)
    inner: Any = load_target(found[0].target)

    class Asleep(inner):
        async def step(self, action: Any) -> Any:
            await asyncio.sleep(SLEEP_S)
            result = super().step(action)
            return await result if inspect.isawaitable(result) else result

    return Asleep


@hookimpl
def tunix_register_envs(register: Any) -> None:
    for spec in _specs:
        if spec.id in ASLEEP:
            name = spec.id.rpartition("/")[2]
            register(replace(spec, id=name, target=f"pipeline_sleep:{name}"))
