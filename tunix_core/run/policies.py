"""Opens what `--model` names: an id, a run directory, or a checkpoint's directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunix_core.config import load_config
from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.plugins import Hub


def open_model(name: str, hub: Hub, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy that `name` means.

    Args:
        name: an id ("models/nano"), a run directory (its newest checkpoint, or "RUN@STEP"), one of
            its checkpoints ("RUN/checkpoints/step-…"), or a directory that `tunix export` wrote.
        options: passed to a registered model.

    Raises:
        UsageError: nothing of that name; the message says where models come from.
        CheckpointError: the directory can't be opened.
    """
    run, _, step = name.partition("@")
    path = Path(run)
    if (path / "config.toml").is_file():
        return _from_run(path, hub, _step(step) if step else None)
    if path.parent.name == "checkpoints" and (path.parent.parent / "config.toml").is_file():
        return _from_run(path.parent.parent, hub, _step(path.name.removeprefix("step-")))
    if path.is_dir():
        return _from_directory(path, options)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise UsageError(
            f"no model at {name!r}: expected an id ({_known(hub)}), a run directory, or an exported directory."
        )
    return hub.load_object("models", name)(**(options or {}))


def _from_directory(path: Path, options: Mapping[str, Any] | None) -> Policy:
    from tunix_core.models import open_policy

    if options:
        raise UsageError(f"{path} is a directory; model options ({', '.join(options)}) go with a registered id only.")
    return open_policy(path)


def _from_run(path: Path, hub: Hub, step: int | None) -> Policy:
    from dataclasses import replace

    from tunix_core.trainer import Checkpoints

    config = load_config(path / "config.toml")
    base = open_model(config.model, hub, config.model_options)
    checkpoints = Checkpoints(path / "checkpoints")
    chosen = checkpoints.latest() if step is None else step
    if chosen is None:
        raise CheckpointError(f"{path} has no checkpoint yet. Its run started from {config.model!r}.")
    return replace(base, id=f"{path}@{chosen}", params=checkpoints.restore_params(chosen, base.params))


def _step(text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"expected a step's number after '@', got {text!r}.")
    return int(text)


def _known(hub: Hub) -> str:
    return ", ".join(spec.id for spec in hub.list("models")) or "none is installed; try: pip install tunix-models"
