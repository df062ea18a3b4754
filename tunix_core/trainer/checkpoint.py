"""Checkpoints of a run: parameters, optimizer, and whatever else survives JSON.

    DIRECTORY/
    ├── step-00000010/    params/ and optimizer/ (Orbax), extra.json
    ├── step-00000020/
    └── LATEST            the newest whole checkpoint's step; written last

A checkpoint is written beside these, moved into place whole, and only then named in LATEST: whenever
the process dies, what LATEST names is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from tunix_core.errors import CheckpointError

Tree = Any  # a pytree of arrays
PARTIAL = ".partial-"
STEP = "step-"
MARKER = "LATEST"


class Checkpoints:
    """The checkpoints of one run. Blocking; call it off the event loop.

    Args:
        directory: made when the first checkpoint is saved.
        keep: how many of the newest stay, at least 1.
    """

    def __init__(self, directory: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep = {keep}, expected at least 1")
        self._directory, self._keep = Path(directory).absolute(), keep

    def save(self, step: int, params: Tree, optimizer: Tree, extra: Mapping[str, Any]) -> Path:
        """Writes a whole checkpoint, names it the newest, and removes what is beyond `keep`.

        Args:
            step: a checkpoint of the same step is replaced.
            params, optimizer: pytrees of arrays.
            extra: survives JSON.

        Returns:
            Its directory.
        """
        partial = self._directory / f"{PARTIAL}{step}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, tree in (("params", params), ("optimizer", optimizer)):
            with _checkpointer() as writer:
                writer.save(partial / name, tree)
        _write(partial / "extra.json", json.dumps(extra))
        final = self._path(step)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _write(self._directory / MARKER, str(step))
        self._prune()
        return final

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, ascending."""
        newest = self._marker()
        found = (path.name.removeprefix(STEP) for path in self._directory.glob(f"{STEP}*"))
        return sorted(int(s) for s in found if s.isdecimal() and newest is not None and int(s) <= newest)

    def latest(self) -> int | None:
        """The newest whole checkpoint's step, or None."""
        return max(self.steps(), default=None)

    def restore(self, step: int, params: Tree, optimizer: Tree) -> tuple[Tree, Tree, dict[str, Any]]:
        """(params, optimizer, extra) of a step, arrays as NumPy.

        Args:
            params, optimizer: templates: pytrees of anything with a shape and a dtype.

        Raises:
            CheckpointError: there is no such checkpoint, or it does not fit the templates.
        """
        return self.restore_params(step, params), self._restore(step, "optimizer", optimizer), self.extra(step)

    def restore_params(self, step: int, template: Tree) -> Tree:
        """The parameters alone, as NumPy. Raises CheckpointError as `restore` does."""
        return self._restore(step, "params", template)

    def extra(self, step: int) -> dict[str, Any]:
        """What was saved as `extra`. Raises CheckpointError when there is no such checkpoint."""
        path = self._found(step) / "extra.json"
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} can't be read: {error}. {self._others(step)}") from error

    def _restore(self, step: int, name: str, template: Tree) -> Tree:
        arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), template)
        path = self._found(step) / name
        with _checkpointer() as reader:
            try:
                tree = reader.restore(path, args=ocp.args.PyTreeRestore(item=template, restore_args=arguments))
            except OSError as error:
                raise CheckpointError(f"{path} can't be read: {error}. {self._others(step)}") from error
            except (ValueError, KeyError) as error:
                raise CheckpointError(f"{path} does not fit this model: {error}") from error
        jax.tree_util.tree_map_with_path(lambda key, a, b: _check_same(path, key, a, b), tree, template)
        return tree

    def _path(self, step: int) -> Path:
        return self._directory / f"{STEP}{step:08d}"

    def _found(self, step: int) -> Path:
        if step not in (steps := self.steps()):
            known = ", ".join(map(str, steps)) or "none"
            raise CheckpointError(f"{self._directory} has no checkpoint of step {step}; there are: {known}")
        return self._path(step)

    def _marker(self) -> int | None:
        path = self._directory / MARKER
        try:
            return int(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(f"{path} must hold the newest whole checkpoint's step; write it there") from error

    def _others(self, step: int) -> str:
        """What to do about a broken checkpoint."""
        older = [other for other in self.steps() if other < step]
        return f"To go on from step {older[-1]}, write {older[-1]} into {self._directory / MARKER}." if older else ""

    def _prune(self) -> None:
        for step in self.steps()[: -self._keep]:
            shutil.rmtree(self._path(step))
        for left in self._directory.glob(f"{PARTIAL}*"):
            shutil.rmtree(left)


def _checkpointer() -> ocp.Checkpointer:
    """One that waits for no other host: on several, one alone saves and restores."""
    if jax.process_count() == 1:
        return ocp.PyTreeCheckpointer()
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(me, active_processes={me}, barrier_sync_key_prefix=f"process-{me}")
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone)


def _write(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _check_same(path: Path, key: Any, found: Any, wanted: Any) -> None:
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        raise CheckpointError(
            f"{path}: {jax.tree_util.keystr(key)} is {found.dtype}{list(found.shape)}, "
            f"expected {wanted.dtype}{list(wanted.shape)}; was the run made with another model or config?"
        )
