"""Opens what `--model` names: an id, a run directory, or a checkpoint's directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from tunix_core.config import load_config
from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UnknownIdError, UsageError
from tunix_core.plugins import Hub


def open_model(name: str, hub: Hub, options: Mapping[str, Any] | None = None, *, mesh: Any = None) -> Policy:
    """The policy that `name` means.

    Args:
        name: an id ("models/nano"), a run directory (its newest checkpoint, or "RUN@STEP"), one of
            its checkpoints ("RUN/checkpoints/step-…"), a directory that `tunix export` wrote, a Hugging Face
            directory, a .gguf file, or the Hugging Face id of a model that was fetched.
        options: passed to a registered model; of any other, `dtype` alone.
        mesh: a jax Mesh its weights are laid on, a checkpoint's tensor by tensor as they are read; default: the
            default device.

    Raises:
        UsageError: nothing of that name; the message says where models come from.
        CheckpointError: the directory can't be opened.
    """
    run, _, step = name.partition("@")
    path = Path(run).expanduser()
    if (path / "config.toml").is_file():
        return _from_run(path, hub, _step(step) if step else None, mesh)
    if path.parent.name == "checkpoints" and (path.parent.parent / "config.toml").is_file():
        return _from_run(path.parent.parent, hub, _step(path.name.removeprefix("step-")), mesh)
    if path.is_dir() or path.is_file():
        return _from_path(path, options, mesh)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise UsageError(
            f"no model at {name!r}: expected an id ({_known(hub)}), a run directory, or an exported directory, "
            "a Hugging Face directory, a .gguf file, or the id of a model fetched with `tunix model fetch OWNER/NAME`."
        )
    if name not in (spec.id for spec in hub.list("models")) and (folder := _fetched(name)):
        return _from_path(folder, options, mesh)
    try:
        return _registered(hub.load_object("models", name), options or {}, mesh)
    except UnknownIdError as error:
        hint = f"There is no such directory either; if it is Hugging Face's, first: tunix model fetch {name}"
        raise UnknownIdError(f"{error}. {hint}") from error


def _registered(make: Callable[..., Policy], options: Mapping[str, Any], mesh: Any) -> Policy:
    """A registered model; one that takes no mesh is laid on it once it is made."""
    from tunix_core.models import lay_policy

    if mesh is None:
        return make(**options)
    return make(**options, mesh=mesh) if "mesh" in signature(make).parameters else lay_policy(make(**options), mesh)


def _from_path(path: Path, options: Mapping[str, Any] | None, mesh: Any) -> Policy:
    from tunix_core.models import open_policy

    given = dict(options or {})
    dtype = given.pop("dtype", None)
    if given:
        raise UsageError(f"{path} takes no model options but dtype; {', '.join(given)} go with a registered id only.")
    return open_policy(path, dtype, mesh=mesh)


def _fetched(name: str) -> Path | None:
    from tunix_core.models.cache import folder_of

    return folder_of(name) if folder_of(name).is_dir() else None


def _from_run(path: Path, hub: Hub, step: int | None, mesh: Any) -> Policy:
    from dataclasses import replace

    from tunix_core.models import lay_policy
    from tunix_core.run.devices import adapters_of
    from tunix_core.trainer import Checkpoints, make_parts

    config = load_config(path / "config.toml")
    base = open_model(config.model, hub, config.model_options)
    checkpoints = Checkpoints(path / "checkpoints")
    chosen = checkpoints.latest() if step is None else step
    if chosen is None:
        raise CheckpointError(f"{path} has no checkpoint yet. Its run started from {config.model!r}.")
    adapters = adapters_of(config, base.model)
    parts = make_parts(base.params, config.trainer.master, adapters)
    trained = checkpoints.restore_params(chosen, parts.trained)
    params = adapters.merge(trained, adapters.base(base.params)) if adapters else parts.having(trained).whole
    policy = replace(base, id=f"{path}@{chosen}", params=params)
    return policy if mesh is None else lay_policy(policy, mesh)


def _step(text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"expected a step's number after '@', got {text!r}.")
    return int(text)


def _known(hub: Hub) -> str:
    return ", ".join(spec.id for spec in hub.list("models")) or "none is installed; try: pip install tunix-models"
