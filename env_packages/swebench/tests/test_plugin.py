from __future__ import annotations

import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tunix_env_swebench import plugin
from tunix_env_swebench.commands import swebench_group
from tunix_env_swebench.loading import fetch_from_hub

from tunix_core.specs import EnvSpec, load_target


def specs() -> dict[str, EnvSpec]:
    found: list[EnvSpec] = []
    plugin.tunix_register_envs(found.append)
    return {spec.id: spec for spec in found}


def test_what_is_registered_can_be_loaded() -> None:
    assert set(specs()) == {f"swebench/{name}" for name in ("mini", "lite", "verified", "rows")}
    for spec in specs().values():
        assert all(load_target(target) for target in (spec.target, spec.tasks, spec.solutions))
        assert spec.requires == ("isolated-sandbox",) and spec.timeouts.step_s > spec.options["eval_timeout_s"].default


def test_the_options_of_a_suite_are_those_of_its_tasks_and_environment() -> None:
    spec = specs()["swebench/mini"]
    named = {*signature(load_target(spec.tasks)).parameters, *signature(load_target(spec.target)).parameters}
    assert set(spec.options) <= named
    defaults = {name: option.default for name, option in spec.options.items()}
    taken = signature(load_target(spec.target)).parameters
    own = {name: taken[name].default for name in defaults if name in taken}
    assert own == {name: defaults[name] for name in own}
    make = load_target(spec.tasks)
    options = {name: value for name, value in defaults.items() if name in signature(make).parameters}
    train, evaluation = (make(split, 0, **options) for split in ("train", "eval"))
    assert (len(train), len(evaluation)) == (3, 2)
    ids = [tasks.get(index).id for tasks in (train, evaluation) for index in range(len(tasks))]
    assert len(set(ids)) == 5


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import sys, tunix_env_swebench.plugin, tunix_env_swebench.env, tunix_env_swebench.tasks; "
        "bad = {'docker', 'pyarrow', 'huggingface_hub', 'swebench', 'datasets', 'jax'} & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def told(*arguments: str) -> str:
    done = CliRunner().invoke(swebench_group, arguments)
    assert done.exit_code, done.output
    return done.output


def test_a_build_that_can_not_be_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert "there is no file 'gone.jsonl'" in told("build", "gone.jsonl", "--base", "x")
    assert "mini has no row 'nope'; it has " in told("build", "--only", "nope", "--base", "x")
    assert "no Docker engine answers" in told("build", "--base", "x")
    assert "--base" in told("build")
    monkeypatch.setitem(sys.modules, "docker", None)
    assert "pip install 'tunix-env-swebench[docker]'" in told("build", "--base", "x")


def test_a_data_set_that_can_not_be_had_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"'owner/set' could not be had: .* Download it as parquet"):
        fetch_from_hub("owner/set", "test")
    gone: Any = None
    monkeypatch.setitem(sys.modules, "huggingface_hub", gone)
    with pytest.raises(ValueError, match=r"tunix-env-swebench\[huggingface\]"):
        fetch_from_hub("owner/set", "test")
