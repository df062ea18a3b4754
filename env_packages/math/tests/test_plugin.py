from __future__ import annotations

import subprocess
import sys
from inspect import signature
from typing import Any

import pytest
from tunix_env_math import plugin

from tunix_core.rewards import close_shared_workers
from tunix_core.specs import EnvSpec, load_target
from tunix_core.testing.envs import check_env


def registered() -> dict[str, Any]:
    specs: list[Any] = []
    for register in (plugin.tunix_register_envs, plugin.tunix_register_tools, plugin.tunix_register_rewards):
        register(specs.append)
    return {f"{type(spec).__name__} {spec.id}": spec for spec in specs}


def test_what_is_registered_can_be_loaded() -> None:
    specs = registered()
    assert set(specs) == {
        "EnvSpec math/arithmetic",
        "EnvSpec math/calculator",
        "ToolSpec math/calculator",
        "RewardSpec math/verify",
    }
    for spec in specs.values():
        assert load_target(spec.target)


def test_the_options_of_a_suite_are_those_of_its_tasks_and_environment() -> None:
    for spec in registered().values():
        if type(spec).__name__ == "EnvSpec":
            named = {*signature(load_target(spec.tasks)).parameters, *signature(load_target(spec.target)).parameters}
            assert spec.options and set(spec.options) <= named  # `**_` would swallow any other in silence
            options = {name: option.default for name, option in spec.options.items()}
            task = load_target(spec.tasks)("train", 0, **options).get(0)
            assert load_target(spec.target)(task, **options).full_task == task


@pytest.mark.parametrize("spec", [s for s in registered().values() if isinstance(s, EnvSpec)], ids=lambda spec: spec.id)
def test_the_suites_keep_what_every_environment_promises(spec: EnvSpec) -> None:
    check_env(spec)
    close_shared_workers()


def test_listing_imports_no_computer_algebra() -> None:
    code = (
        "import sys, tunix_env_math.plugin, tunix_env_math.tasks, tunix_env_math.arithmetic; "
        "assert not {'sympy', 'math_verify', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
