"""Makes the calls of one environment on the event loop: one after another, and all in one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tunix_core.envs.base import is_awaitable
from tunix_core.envs.waiting import OVERDUE, Limit, Tally, ended_by_cancelling
from tunix_core.errors import EnvError, words
from tunix_core.profiling import continue_span, current_span
from tunix_core.profiling.holding import Bound, bounded

Answer = asyncio.Future[Any]


class Caller:
    """Makes calls that give a value or an awaitable, and awaits what they give, within a limit.

    All in one task, since what one call opens another closes: a task group, a cancel scope, a context variable. And a
    task for each call would cost more than most calls do. After a call that was cancelled comes another task, and what
    is called while another call goes on has its own.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally, self._loop = tally, asyncio.get_running_loop()
        self._next: asyncio.Future[Any] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._calling = False

    async def call(self, work: Callable[[], Any], limit: Limit, what: str) -> Any:
        """What `work()` gives, awaited; it is cancelled past the limit, and when this is.

        A call that does not obey within a second is left behind, and counted in `tally.uncancelled`.

        Args:
            what: what is being done: "env.step".

        Raises:
            EnvError: kind "env_timeout"; or the call cancelled itself, or would have ended the process. Else
                whatever it raises.
        """
        if self._calling:
            return await self._call_beside(work, limit, what)
        bound = Bound(limit.seconds)
        answer, self._calling = self._ask(work, what, bound), True
        limit.watch(answer)
        try:
            given = await answer
        except asyncio.CancelledError:
            await self._stop()
            raise
        finally:
            self._calling = False
            limit.forget(answer)
            del work, answer  # what the call raised holds this frame
        if given is OVERDUE:
            await self._stop()
            raise limit.overdue(what, held=bound.cut)
        return given

    def end(self) -> None:
        """No more calls are made. One that goes on may still be cancelled by who made it."""
        if not self._next.done():
            self._next.set_result(None)

    async def _call_beside(self, work: Callable[[], Any], limit: Limit, what: str) -> Any:
        other = Caller(self._tally)
        try:
            return await other.call(work, limit, what)
        finally:
            other.end()

    def _ask(self, work: Callable[[], Any], what: str, bound: Bound) -> Answer:
        answer: Answer = self._loop.create_future()
        if self._task is None or self._task.done() or self._next.done():  # what a call left open may cancel the task
            self._next = self._loop.create_future()
            self._task = self._loop.create_task(self._serve())
        self._next.set_result((work, answer, what, bound, current_span()))
        return answer

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await ended_by_cancelling(task, self._tally)

    async def _serve(self) -> None:
        """The task: as long as there is something to call, and somebody waits for what was called."""
        wanted = True
        while wanted and (asked := await self._next):
            self._next = self._loop.create_future()
            *call, inside = asked
            continue_span(inside)
            wanted = await _answered(*call)
            del asked, call, inside


@bounded
async def _answered(work: Callable[[], Any], answer: Answer, what: str, bound: Bound) -> bool:
    """Makes a call and gives its answer; False when nobody waits for it any more, or this task is to end."""
    value = None
    try:
        value = work()
        while is_awaitable(value):  # what a thread gives may itself be one
            value = await value
        return _give(answer, OVERDUE if bound.cut else value)
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError:
        if bound.cut:
            _give(answer, OVERDUE)
        _refuse(answer, EnvError(f"{what} cancelled itself"))
        return False
    except GeneratorExit as error:  # nothing may be awaited after it
        _refuse(answer, _contained(error))
        return False
    except BaseException as error:  # noqa: BLE001 - an environment's boundary: its errors are the caller's
        return _refuse(answer, _contained(error))
    finally:
        del work, answer, value  # what was raised holds this frame


def _give(answer: Answer, value: Any) -> bool:
    if answer.done():
        return False
    answer.set_result(value)
    return True


def _refuse(answer: Answer, error: Exception) -> bool:
    if answer.done():
        return False
    answer.set_exception(error)
    return True


def _contained(error: BaseException) -> Exception:
    """An environment may not end the trainer, by SystemExit or a panic in Rust; and no future takes StopIteration."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    contained = EnvError(words(error))
    contained.__cause__ = error
    return contained
