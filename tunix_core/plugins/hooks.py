"""Calls the hooks of the loaded plugins: observers isolated, decisions first come."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tunix_core.plugins.loader import HOOKS, Loaded, call, explain, new_manager

logger = logging.getLogger(__name__)


class PluginHooks:
    """Satisfies contracts.Hooks. A hook nobody implements costs one dictionary look-up."""

    def __init__(self, plugins: Sequence[Loaded]) -> None:
        manager = new_manager()
        for plugin in plugins:
            for number, implementer in enumerate(plugin.objects):
                if not manager.is_registered(implementer):
                    manager.register(implementer, name=f"{plugin.record.name}:{number}")
        # pluggy calls the last of this list first
        self._impls = {name: tuple(reversed(getattr(manager.hook, name).get_hookimpls())) for name in HOOKS}
        self._failures: Counter[tuple[str, str]] = Counter()

    def notify(self, hook: str, **arguments: Any) -> None:
        """Tells every plugin. One that raises is reported once and counted; the others still hear it."""
        if self._impls[hook]:
            self.collect(hook, **arguments)

    def decide(self, hook: str, **arguments: Any) -> Any:
        """The first answer other than None, or None. What a plugin raises here goes to the caller."""
        for impl in self._impls[hook]:
            try:
                answer = call(impl, arguments)
            except (Exception, KeyboardInterrupt):
                raise
            except BaseException as error:  # SystemExit, a panic in Rust: no answer ends the program
                raise RuntimeError(explain(error)) from error
            if answer is not None:
                return answer
        return None

    def collect(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """Like `notify`; gives (plugin's name, answer) for every answer other than None."""
        answers: list[tuple[str, Any]] = []
        for impl in self._impls[hook]:
            name = impl.plugin_name.rpartition(":")[0]
            absent = [a for a in impl.argnames if a not in arguments]
            if absent:
                raise TypeError(f"{hook} is called without {', '.join(absent)}")
            try:
                answer = call(impl, arguments)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - an observer must not end the run, by sys.exit or a panic either
                self._report(name, hook, error)
            else:
                if answer is not None:
                    answers.append((name, answer))
        return answers

    def failures(self) -> Mapping[tuple[str, str], int]:
        """How often each (plugin, hook) raised."""
        return dict(self._failures)

    def _report(self, name: str, hook: str, error: BaseException) -> None:
        self._failures[name, hook] += 1
        if self._failures[name, hook] == 1:
            what = (name, hook, explain(error))
            logger.warning("plugin %s: %s failed and is left out: %s; more of these are only counted", *what)
            logger.debug("the traceback of it", exc_info=error)
