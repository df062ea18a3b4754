"""Writes a run's policy as a directory that `--model DIR` opens."""

from __future__ import annotations

from pathlib import Path

from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.run.policies import open_model


def export(run: str, target: str, *, hub: Hub) -> Path:
    """Writes weights, tokenizer and chat format of `run` (as `open_model` takes it) to `target`.

    Raises:
        UsageError: `target` exists and is not an empty directory.
    """
    from tunix_core.models import save_policy

    path = Path(target)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{target} exists and is not an empty directory; choose another place to export to.")
    save_policy(open_model(run, hub), path)
    return path
