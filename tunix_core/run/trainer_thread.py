"""The one thread in which the trainer's blocking work runs, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tunix_core.profiling import span
from tunix_core.tools.threads import Lane
from tunix_core.types import Group

END_TIMEOUT_S = 10.0


class TrainerThread:
    """Runs calls one after the other. A daemon: a device call that hangs must not keep the process."""

    def __init__(self) -> None:
        self._lane = Lane("tunix-trainer")

    async def call(self, step: int, work: Callable[..., Any], *arguments: Any) -> Any:
        """`work(*arguments)`, under a span "trainer.NAME" that names the step, and the group where it is about one."""
        name, about = f"trainer.{work.__name__.strip('_')}", _about(arguments)

        def call() -> Any:
            with span(name, step=step, **about):
                return work(*arguments)

        return await asyncio.wrap_future(self._lane.submit(call))

    async def aclose(self) -> None:
        """Ends the thread; one that hangs in a call is left behind."""
        self._lane.end()
        await asyncio.to_thread(self._lane.join, END_TIMEOUT_S)


def _about(arguments: Sequence[Any]) -> dict[str, Any]:
    groups = [each for each in arguments if isinstance(each, Group)]
    return {"suite": groups[0].suite, "group": groups[0].index} if groups else {}
