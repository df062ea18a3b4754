"""Where fetched models lie: the user's cache, one folder a model."""

from __future__ import annotations

import os
from pathlib import Path

from tunix_core.errors import UsageError


def cache_dir() -> Path:
    """The folder of all fetched models: TUNIX_MODELS, or tunix/models in the user's cache (XDG_CACHE_HOME)."""
    if chosen := os.environ.get("TUNIX_MODELS"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "tunix" / "models"


def folder_of(name: str) -> Path:
    """Where the model of that name lies, or would: "smollm2-135m", or an id of Hugging Face's ("owner/name")."""
    return cache_dir() / name.replace("/", "--")


def is_fetched(name: str) -> bool:
    """Whether the model is there, whole."""
    return folder_of(name).is_dir()


def fetched(name: str) -> Path:
    """The folder of a model that was fetched. Raises UsageError, with the command to give, when it wasn't."""
    if not is_fetched(name):
        raise UsageError(f"the model {name!r} isn't fetched yet; run: tunix model fetch {name}")
    return folder_of(name)
