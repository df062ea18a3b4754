"""Builds the environments that live on the event loop: in threads, since a constructor may block.

To hand one call to a thread and back costs more than most constructors take. What is asked for in one turn of the
loop, as the members of a group are, goes to a thread together; one that hangs holds up nobody else.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tunix_core.envs.lanes import Lanes
from tunix_core.envs.waiting import wait_for_thread
from tunix_core.errors import EnvError
from tunix_core.tools.threads import Lane, plain

PATIENCE_S, QUICK = 0.05, 10  # another thread takes what still waits when fewer than so many were built in that time


@dataclass(slots=True, eq=False)
class Job:
    """One environment to be built.

    Attributes:
        make: builds it; may block.
        done: is told when it is built, or why not.
        lane: the thread that is at it.
        given_up: nobody waits for it any more.
    """

    make: Callable[[], object]
    done: asyncio.Future[None]
    lane: Lane | None = None
    given_up: bool = False


class Builder:
    """Threads that build what is asked for; as many as `lanes` has places, when they are slow."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._waiting: deque[Job] = deque()
        self._built: deque[tuple[Job, Exception | None]] = deque()
        self._told = False  # the loop is to look at what is built
        self._begun = 0
        self._lock = threading.Lock()  # a job's end and its being given up are seen in one order by both
        self._staffing: asyncio.Task[None] | None = None

    def begin(self, make: Callable[[], object]) -> Job:
        """Will call `make` in a thread."""
        job = Job(make, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._staffing is None:
            self._staffing = asyncio.get_running_loop().create_task(self._staff())
        return job

    def give_up(self, job: Job) -> Lane | None:
        """Nobody waits for the job any more. The thread that hangs in it, if one does, is the caller's from now on."""
        with self._lock:
            job.given_up = True
            return job.lane

    async def aclose(self) -> None:
        """Finds no more threads; those at work end with what they are at."""
        if self._staffing is not None:
            staffing = self._staffing
            await asyncio.wait({staffing}, timeout=PATIENCE_S)
            staffing.cancel()

    async def _staff(self) -> None:
        """Finds threads while something waits: one, and one more each time those have not got through it."""
        try:
            while self._waiting:
                await self._lanes.enter()
                lane = self._lanes.lease()
                call = lane.submit(partial(self._take, lane, asyncio.get_running_loop()))
                self._lanes.leave_after(call)
                call.add_done_callback(partial(self._returned, lane, asyncio.get_running_loop()))
                await self._ended_or_slow(call)
        except EnvError as error:
            self._built.extend((job, error) for job in self._waiting)
            self._waiting.clear()
            self._tell()
        finally:
            self._staffing = None

    async def _ended_or_slow(self, call: Future[bool]) -> None:
        """Returns when a thread is through, or gets through too little: while it is quick, more would take turns."""
        begun = -QUICK
        while self._begun >= begun + QUICK:
            begun = self._begun
            if await wait_for_thread(call, PATIENCE_S):
                return

    def _take(self, lane: Lane, loop: asyncio.AbstractEventLoop) -> bool:
        """In a thread: builds what waits. False when the thread was given up meanwhile."""
        while self._waiting:
            with suppress(IndexError):  # another thread was faster
                job = self._waiting.popleft()
                with self._lock:
                    job.lane = None if job.given_up else lane
                self._begun += 1
                if job.lane is not None and not self._build(job, loop):
                    return False
        return True

    def _build(self, job: Job, loop: asyncio.AbstractEventLoop) -> bool:
        error = None
        try:
            job.make()
        except BaseException as raised:  # noqa: BLE001 - a thread's boundary: what it raises belongs to the caller
            error = plain(raised)
        with self._lock:
            job.lane = None
            if job.given_up:
                return False
        self._built.append((job, error))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._tell)
        return True

    def _tell(self) -> None:
        self._told = False
        while self._built:
            job, error = self._built.popleft()
            if job.done.done():
                continue
            if error is None:
                job.done.set_result(None)
            else:
                job.done.set_exception(error)

    def _returned(self, lane: Lane, loop: asyncio.AbstractEventLoop, call: Future[bool]) -> None:
        if call.result():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._lanes.give_back, lane)
