"""The only room that knows every room: builds and connects them.

Each entry imports what it needs inside the function, so that listing plugins never loads JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunix_core.config import RunConfig
    from tunix_core.plugins import Hub
    from tunix_core.run.hosts import Hosts
    from tunix_core.run.outcome import RunResult


def train(config: RunConfig, *, hub: Hub, **how: Any) -> RunResult:
    """Trains as `config` says; see `run.start.train`."""
    from tunix_core.run.start import train as run_train

    return run_train(config, hub=hub, **how)


def hosts_of(**which: Any) -> Hosts | None:
    """Which of several processes this is; see `run.hosts.hosts_of`."""
    from tunix_core.run.hosts import hosts_of as run_hosts_of

    return run_hosts_of(**which)


def evaluate(env: str, *, hub: Hub, **how: Any) -> Mapping[str, Any]:
    """Scores a policy on an environment; see `run.evaluation.evaluate`."""
    from tunix_core.run.evaluation import evaluate as run_evaluate

    return run_evaluate(env, hub=hub, **how)


def export(run: str, target: str, *, hub: Hub) -> Path:
    """Writes a run's policy as a directory; see `run.exporting.export`."""
    from tunix_core.run.exporting import export as run_export

    return run_export(run, target, hub=hub)


__all__ = ["evaluate", "export", "hosts_of", "train"]
