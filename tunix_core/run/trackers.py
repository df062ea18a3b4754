"""The trackers a run names. One that raises is reported and left out; the run goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tunix_core.contracts import Tracker
from tunix_core.plugins import Hub

log = logging.getLogger(__name__)


class Trackers:
    """Opens the trackers by id, and tells each of them every step.

    Raises:
        UsageError: an id that nothing registered, or a plugin that can't be imported.
    """

    def __init__(self, ids: Sequence[str], hub: Hub, run_dir: Path) -> None:
        self._open: dict[str, Tracker] = {name: hub.load_object("trackers", name)(run_dir) for name in ids}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row, under the run's own step number."""
        for name, tracker in list(self._open.items()):
            self._try(name, lambda tracker=tracker: tracker.log(step, metrics))

    def close(self) -> None:
        for name, tracker in list(self._open.items()):
            self._try(name, tracker.close)
        self._open.clear()

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.warning("tracker %s failed and is left out from here on", name, exc_info=True)
            self._open.pop(name, None)
