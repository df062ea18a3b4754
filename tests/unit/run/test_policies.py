"""What `--model` names, and what is said when it names nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from tunix_core.errors import CheckpointError, PluginError, UnknownIdError, UsageError
from tunix_core.plugins import Hub
from tunix_core.run.policies import open_model

PLUGIN = """
from types import SimpleNamespace
from tunix_core import ModelSpec, hookimpl

def load(*, random=None):
    return SimpleNamespace(random=random)

def load_laid(*, mesh=None):
    return SimpleNamespace(mesh=mesh)

@hookimpl
def tunix_register_models(register):
    register(ModelSpec("small", "zoo:load"))
    register(ModelSpec("laid", "zoo:load_laid"))
    register(ModelSpec("broken", "zoo:absent"))
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (tmp_path / "zoo.py").write_text(PLUGIN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield Hub.load(["zoo.py"])
    sys.modules.pop("zoo", None)


def test_an_id_is_made_with_its_options(hub: Hub) -> None:
    assert open_model("zoo/small", hub, {"random": 3}).random == 3  # pyright: ignore[reportAttributeAccessIssue]


def test_a_model_that_takes_a_mesh_is_given_it_and_another_is_laid_on_it(hub: Hub) -> None:
    mesh: Any = Mesh(np.asarray(jax.devices()[:1]), ("tensor",))
    assert open_model("zoo/laid", hub, mesh=mesh).mesh is mesh  # pyright: ignore[reportAttributeAccessIssue]
    assert open_model("zoo/laid", hub).mesh is None  # pyright: ignore[reportAttributeAccessIssue]
    nano = open_model("models/nano", hub, mesh=mesh)
    assert {leaf.sharding.mesh for leaf in jax.tree.leaves(nano.params)} == {mesh}


@pytest.mark.parametrize("name", ["./runs/gone", "/nowhere", "~/gone", "gone", "runs/gone/checkpoints/step-3"])
def test_a_path_that_is_not_there_is_told_with_what_is_expected(hub: Hub, name: str) -> None:
    with pytest.raises(
        UsageError, match=r"no model at .*: expected an id \(.*zoo/small\), a run directory, or"
    ) as told:
        open_model(name, hub)
    assert repr(name) in str(told.value)


def test_an_unknown_or_broken_id_is_told_like_any_other(hub: Hub) -> None:
    with pytest.raises(UnknownIdError, match="Did you mean 'zoo/small'"):
        open_model("zoo/smal", hub)
    with pytest.raises(PluginError, match=r"zoo/broken: 'zoo:absent' of file .* can't be imported"):
        open_model("zoo/broken", hub)


def test_without_any_model_it_says_what_to_install(hub: Hub) -> None:
    with pytest.raises(UsageError, match="none is installed; try: pip install tunix-models"):
        open_model("gone", Hub.load(disabled=["tunix-models"]))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text('model = "zoo/small"\n[[suite]]\nenv = "a/b"\n')
    return path


def test_a_run_without_a_checkpoint_says_so(hub: Hub, run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no checkpoint yet\. Its run started from 'zoo/small'"):
        open_model(str(run), hub)


def test_a_step_is_a_number(hub: Hub, run: Path) -> None:
    with pytest.raises(UsageError, match="expected a step's number after '@', got 'last'"):
        open_model(f"{run}@last", hub)


def test_a_directory_takes_no_options(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "exported").mkdir()
    with pytest.raises(UsageError, match=r"exported takes no model options but dtype; random go"):
        open_model("./exported", hub, {"random": 1})
    with pytest.raises(CheckpointError, match="exported"):
        open_model("./exported", hub)
