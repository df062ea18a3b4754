"""A resumed run is what was started, or it is refused by the name of what changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunix_core.config import load_config
from tunix_core.errors import CheckpointError, UnknownIdError
from tunix_core.plugins import Hub
from tunix_core.run.build import prepare
from tunix_core.run.lock import check_lock, make_lock
from tunix_core.tasks import ListSource
from tunix_core.types import Task

PLUGIN = """
from tunix_core import EnvSpec, Option, RewardSpec, hookimpl

@hookimpl
def tunix_register_envs(register):
    register(EnvSpec("x", "json:loads", "json:dumps", options={"sizes": Option((1, 2))}, max_turns=3))

@hookimpl
def tunix_register_rewards(register):
    register(RewardSpec("r", "json:loads"))
"""
RUN = """
model = "models/nano"
seed = 4
[[suite]]
env = "pool/x"
options = { sizes = [3] }
rewards = ["env", "pool/r"]
"""


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    """`lock(run, plugin)` makes the lock of a config with that plugin file."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(run: str = RUN, plugin: str = PLUGIN, tasks: str = "abc") -> dict[str, Any]:
        (tmp_path / "pool.py").write_text(plugin)
        hub = Hub.load([tmp_path / "pool.py"])
        config = load_config(None, text=run)
        sources = {"pool/x": ListSource([Task(name) for name in tasks])}
        return make_lock(config, [prepare(suite, hub) for suite in config.suites], hub, sources)

    yield make
    sys.modules.pop("pool", None)


def saved(lock: dict[str, Any]) -> dict[str, Any]:
    """As it is read back from lock.json."""
    return json.loads(json.dumps(lock, default=str))


def test_it_names_what_the_run_uses_and_nothing_else(lock: Callable[..., dict[str, Any]]) -> None:
    made = lock()
    assert made["distributions"].keys() == {
        "tunix-core",
        "tunix-algorithms",
        "tunix-engines",
        "tunix-models",
        "file:pool",
    }
    assert made["suites"] == {"pool/x": {"sizes": [3]}} and made["specs"].keys() == {"pool/x"}
    assert (made["seed"], made["model"]) == (4, "models/nano")


def test_an_unchanged_run_goes_on_whatever_else_is_installed(lock: Callable[..., dict[str, Any]]) -> None:
    check_lock(saved(lock()), lock())
    defaults = RUN.replace("options = { sizes = [3] }\n", "")  # tuples come back from JSON as lists
    check_lock(saved(lock(defaults)), lock(defaults))


@pytest.mark.parametrize(
    ("run", "plugin", "says"),
    [
        (("seed = 4", "seed = 5"), ("", ""), "seed: was 4, is 5"),
        (("models/nano", "runs/other"), ("", ""), "model: was 'models/nano', is 'runs/other'"),
        (("[3]", "[3, 4]"), ("", ""), r"suites\.pool/x: was {'sizes': \[3\]}, is {'sizes': \[3, 4\]}"),
        (("", ""), ("max_turns=3", "max_turns=4"), r"specs\.pool/x: was '\w+', is '\w+'"),
        (("", ""), ("import EnvSpec", "import  EnvSpec"), r"distributions\.file:pool: was '\w+', is '\w+'"),
        (('"env", "pool/r"', '"env", "rewards/finished"'), ("", ""), r"distributions\.tunix-rewards: was None, is '0"),
    ],
)
def test_what_changed_is_refused_by_name(
    lock: Callable[..., dict[str, Any]], run: tuple[str, str], plugin: tuple[str, str], says: str
) -> None:
    before = saved(lock())
    after = lock(RUN.replace(*run) if run[0] else RUN, PLUGIN.replace(*plugin) if plugin[0] else PLUGIN)
    with pytest.raises(CheckpointError, match=f"can't be resumed as it was started: .*{says}") as refused:
        check_lock(before, after)
    assert "Restore these, or start a new run." in str(refused.value)


def test_other_tasks_and_another_reference_are_refused(lock: Callable[..., dict[str, Any]]) -> None:
    before = saved(lock())
    with pytest.raises(CheckpointError, match=r"tasks\.pool/x: was '3, \w+', is '4, \w+'"):
        check_lock(before, lock(tasks="abcd"))
    with pytest.raises(CheckpointError, match=r"tasks\.pool/x: was '3, \w+', is '3, \w+'"):
        check_lock(before, lock(tasks="abd"))
    with pytest.raises(CheckpointError, match="reference: was '', is 'runs/teacher'"):
        check_lock(before, lock(f"{RUN}\n[trainer]\nreference = 'runs/teacher'\n"))


def test_another_version_of_a_package_is_refused(lock: Callable[..., dict[str, Any]]) -> None:
    before = saved(lock())
    before["distributions"]["tunix-core"] = "0.0.7"
    with pytest.raises(CheckpointError, match=r"distributions\.tunix-core: was '0\.0\.7', is "):
        check_lock(before, lock())


def test_an_unknown_id_has_no_lock(lock: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(UnknownIdError, match="rewards has no 'pool/q'"):
        lock(RUN.replace("pool/r", "pool/q"))
