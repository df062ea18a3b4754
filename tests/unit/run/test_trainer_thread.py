"""What the trainer computes leaves the event loop free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from tunix_core.profiling import recording
from tunix_core.run.trainer_thread import TrainerThread
from tunix_core.types import Group, Task


def run(body: Callable[[TrainerThread], Awaitable[None]]) -> None:
    async def main() -> None:
        thread = TrainerThread()
        try:
            await body(thread)
        finally:
            await thread.aclose()

    others = set(threading.enumerate())
    asyncio.run(main())
    assert not [thread for thread in set(threading.enumerate()) - others if thread.name == "tunix-trainer"]


def test_the_event_loop_goes_on_while_it_computes() -> None:
    async def body(thread: TrainerThread) -> None:
        loop = asyncio.get_running_loop()

        def accumulate(x: int) -> int:  # returns once the loop has had a turn
            return asyncio.run_coroutine_threadsafe(asyncio.sleep(0, x + 1), loop).result(10)

        assert await thread.call(3, accumulate, 4) == 5

    run(body)


def test_calls_follow_one_another_in_one_thread_and_raise_to_who_asked() -> None:
    seen: list[tuple[int, int]] = []

    def work(number: int) -> None:
        seen.append((number, threading.get_ident()))
        if number == 1:
            raise ZeroDivisionError("a step that failed")

    async def body(thread: TrainerThread) -> None:
        found: list[Any] = await asyncio.gather(*(thread.call(0, work, i) for i in range(4)), return_exceptions=True)
        assert [type(each) for each in found] == [type(None), ZeroDivisionError, type(None), type(None)]

    run(body)
    assert [number for number, _ in seen] == [0, 1, 2, 3]
    assert len({thread for _, thread in seen} | {threading.get_ident()}) == 2


def test_a_call_is_a_span_that_names_the_step_and_the_group() -> None:
    def _restore(group: Group) -> None: ...

    async def body(thread: TrainerThread) -> None:
        await thread.call(5, _restore, Group("sums", 2, Task("t"), ()))

    with recording() as recorder:
        run(body)
    (span,) = recorder.drain()
    assert (span.name, dict(span.tags)) == ("trainer.restore", {"step": 5, "suite": "sums", "group": 2})
