"""Checkpoints: whole or not there."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tunix_core.errors import CheckpointError
from tunix_core.trainer import Checkpoints


def trees(value: float) -> tuple[Any, Any]:
    params = {"layer": {"w": jnp.full((3, 2), value)}, "list": [jnp.float32(value), jnp.arange(3)]}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)).init(params["layer"])
    return params, (optimizer, jnp.int32(value))


def save(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints.save(step, *trees(float(step)), {"cursor": step, "rng": [1, 2**60]})


def same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.latest() is None
    save(checkpoints, 7)
    templates = jax.eval_shape(lambda: trees(0.0))
    params, optimizer, extra = Checkpoints(tmp_path / "run").restore(7, *templates)
    same(params, trees(7.0)[0])
    same(optimizer, trees(7.0)[1])
    assert extra == {"cursor": 7, "rng": [1, 2**60]}
    same(checkpoints.restore_params(7, templates[0]), params)


def test_the_newest_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 10):
        save(checkpoints, step)
    assert (checkpoints.steps(), checkpoints.latest()) == ([2, 10], 10)
    assert {p.name for p in tmp_path.iterdir()} == {"step-00000002", "step-00000010", "LATEST"}


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 3)
    checkpoints.save(3, *trees(4.0), {})
    assert checkpoints.extra(3) == {}
    same(checkpoints.restore_params(3, trees(0.0)[0]), trees(4.0)[0])


@pytest.mark.parametrize("dies_at", ["params", "extra.json", "rename", "LATEST"])
def test_a_half_written_checkpoint_is_never_picked(
    tmp_path: Path, dies_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def dying(method: Any) -> Any:
        def call(self: Path, *args: Any, **kwargs: Any) -> Any:
            if (dies_at == "rename" and method is rename) or dies_at in str(args[0] if args else ""):
                raise Killed
            return method(self, *args, **kwargs)

        return call

    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    rename = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(Path, "replace", dying(Path.replace))
        if dies_at == "params":
            patch.setattr("orbax.checkpoint.PyTreeCheckpointer.save", dying(lambda *_: None))
        with pytest.raises(Killed):
            save(checkpoints, 2)
    assert checkpoints.latest() == 1
    assert checkpoints.extra(1)["cursor"] == 1
    save(checkpoints, 2)
    assert checkpoints.steps() == [1, 2]
    assert not list(tmp_path.glob(".partial-*"))


def test_a_killed_process_leaves_the_last_whole_one(tmp_path: Path) -> None:
    """The process dies by SIGKILL while the second checkpoint's arrays are being written."""
    code = (
        "import os, signal, sys, numpy as np, orbax.checkpoint as ocp\n"
        "from tunix_core.trainer import Checkpoints\n"
        "checkpoints = Checkpoints(sys.argv[1])\n"
        "checkpoints.save(1, {'w': np.ones(3)}, {'m': np.ones(3)}, {})\n"
        "save = ocp.PyTreeCheckpointer.save\n"
        "def die(self, path, tree):\n"
        "    save(self, path, tree)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "ocp.PyTreeCheckpointer.save = die\n"
        "checkpoints.save(2, {'w': np.ones(3)}, {'m': np.ones(3)}, {})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".partial-*"))
    assert Checkpoints(tmp_path).latest() == 1


def test_one_removed_by_hand_is_not_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2).rename(tmp_path / "elsewhere")
    assert checkpoints.latest() == 1


def test_what_is_not_there_or_does_not_fit_is_said(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint of step 5; there are: none"):
        checkpoints.extra(5)
    save(checkpoints, 1)
    with pytest.raises(CheckpointError, match="there are: 1"):
        checkpoints.restore_params(5, trees(0.0)[0])
    wider = {**trees(0.0)[0], "layer": {"w": jnp.zeros((3, 4))}}
    with pytest.raises(CheckpointError, match=r"w.*is float32\[3, 2\], expected float32\[3, 4\]"):
        checkpoints.restore_params(1, wider)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        checkpoints.restore_params(1, {"other": jnp.zeros(3)})


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    save(Checkpoints(tmp_path), 1)
    Checkpoints(tmp_path).restore_params(1, trees(0.0)[0])
    for thread in set(threading.enumerate()) - before:  # one that was told to end may still be at it
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_a_damaged_checkpoint_is_named_with_the_one_before_it(tmp_path: Path) -> None:
    saved, tree = Checkpoints(tmp_path), {"a": np.zeros(2, np.float32)}
    for step in (1, 2):
        saved.save(step, tree, tree, {})
    (tmp_path / "step-00000002" / "extra.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"extra\.json can't be read.*write 1 into"):
        saved.extra(2)
    shutil.rmtree(tmp_path / "step-00000002" / "params")
    with pytest.raises(CheckpointError, match="params can't be read"):
        saved.restore_params(2, tree)
    (tmp_path / "LATEST").write_text("")
    with pytest.raises(CheckpointError, match="must hold the newest"):
        saved.latest()
