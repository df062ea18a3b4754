"""What watches: hooks and trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tunix_core.types import SampleId


class Hooks(Protocol):
    """Calls the observers, each isolated, and the decisions; see `hookspecs`.

    `collect` is `notify` that gives (plugin's name, answer) for each answer other than None. What a
    decision raises goes to the caller.
    """

    def notify(self, hook: str, **arguments: Any) -> None: ...
    def collect(self, hook: str, **arguments: Any) -> Sequence[tuple[str, Any]]: ...
    def decide(self, hook: str, **arguments: Any) -> Any: ...


class Tracker(Protocol):
    """Where metrics go besides the run directory."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """Where in a run a hook is called."""

    run_dir: Path | None = None
    suite: str = ""
    sample: SampleId | None = None
    step: int | None = None
    env: str = ""
