"""An environment in this process: `async` code on the event loop, blocking code in a thread.

A thread cannot be killed. When a call outlives its limit the episode ends, the thread is left
behind, and the environment's `close` waits in that thread for the call to return. Since any call may
hang, no more are made at a time than threads may be left behind.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any

from tunix_core.envs.base import BaseTaskEnv
from tunix_core.envs.building import Builder
from tunix_core.envs.caller import Caller
from tunix_core.envs.drive import advance, begin
from tunix_core.envs.lanes import Lanes
from tunix_core.envs.waiting import Limit, Limits, Tally, bounded, wait_for_thread
from tunix_core.errors import EnvError
from tunix_core.tools.threads import Lane
from tunix_core.types import Message, Opening, StepResult

log = logging.getLogger(__name__)


class LocalCell:
    """Holds one environment in this process.

    Args:
        make: builds the environment; may block.
        builder: has it built, where its calls need no thread; None: it is built in the thread of its calls.
    """

    def __init__(
        self,
        make: Callable[[], BaseTaskEnv],
        lanes: Lanes,
        limits: Limits,
        tally: Tally,
        builder: Builder | None = None,
    ) -> None:
        self._make, self._lanes, self._limits, self._tally, self._builder = make, lanes, limits, tally, builder
        self._lane: Lane | None = None
        self._in_lane: set[object] = set()  # calls that the lane has not returned from
        self._env: BaseTaskEnv | None = None
        self._overdue = ""  # which call's time was over, in words
        self._loop, self._caller = asyncio.get_running_loop(), Caller(tally)

    async def open(self) -> None:
        if self._builder is not None:
            await self._built_by(self._builder)
            return
        await self._call(self._build, False, self._limits.reset, "env.open")
        if self._env is not None and is_async(type(self._env)):
            self._release()

    def reset(self, seed: int) -> Awaitable[Opening]:
        env = self._opened()
        on_loop = _on_loop(type(env), "reset", "_initial_observation")
        return self._call(partial(begin, env, seed), on_loop, self._limits.reset, "env.reset")

    def step(self, action: Message) -> Awaitable[StepResult]:
        env = self._opened()
        on_loop = _on_loop(type(env), "step", "_step_impl")
        return self._call(partial(advance, env, action), on_loop, self._limits.step, "env.step")

    def close_at_once(self) -> bool:
        if self._lane is not None or (self._env is not None and _closes_itself(type(self._env))):
            return False
        self._caller.end()
        return True

    async def close(self) -> None:
        """Closes the environment: at once, or in its thread when the call that hangs there returns."""
        try:
            if self._lane is not None:
                await self._close_in_lane(self._lane)
            elif self._env is not None and not self.close_at_once():
                await self._call(self._env.close, True, self._limits.close, "env.close")
        finally:
            self._caller.end()

    async def _built_by(self, builder: Builder) -> None:
        job = builder.begin(self._build)
        try:
            await bounded(job.done, self._limits.reset, "env.open", self._tally)
        except EnvError as error:
            self._note(error)
            raise
        finally:
            if job.done.cancelled():
                self._lane = builder.give_up(job)
                self._in_lane.add(job)
            del job  # what the constructor raised holds this frame

    def _build(self) -> None:
        self._env = self._make()

    def _opened(self) -> BaseTaskEnv:
        if self._env is None:
            raise EnvError("the environment is not open")
        return self._env

    async def _call(self, call: Callable[[], Any], on_loop: bool, limit: Limit, what: str) -> Any:
        """Makes a call on the event loop or in the lane, and awaits what it gives if that is awaitable."""
        if not on_loop:
            await self._lanes.enter()
        try:
            return await self._caller.call(call if on_loop else self._submit(call), limit, what)
        except EnvError as error:
            self._note(error)
            raise

    def _note(self, error: EnvError) -> None:
        if error.kind == "env_timeout":
            self._overdue = str(error)

    def _submit(self, call: Callable[[], Any]) -> Callable[[], asyncio.Future[Any]]:
        """Has the lane make the call; what is given gives its answer. Nothing else holds that: it may be an error."""
        self._lane = self._lane or self._lanes.lease()
        number = object()
        self._in_lane.add(number)
        submitted = self._lane.submit(call)
        submitted.add_done_callback(lambda _: self._in_lane.discard(number))
        self._lanes.leave_after(submitted)
        return partial(asyncio.wrap_future, submitted)

    def _release(self) -> None:
        if self._lane is not None:
            self._lanes.give_back(self._lane)
            self._lane = None

    async def _close_in_lane(self, lane: Lane) -> None:
        hangs = self._overdue and self._in_lane
        closing = lane.submit(self._close_here)
        if await wait_for_thread(closing, 0 if hangs else self._limits.close.seconds):
            self._release()
            closing.result()
            return
        error = self._limits.close.overdue("env.close")
        self._abandon(lane, closing, self._overdue if hangs else str(error))
        if not hangs:
            raise error

    def _close_here(self) -> None:
        """Runs in the lane, behind whatever hangs there."""
        value = self._env.close() if self._env is not None else None
        if not inspect.isawaitable(value):
            return
        if self._loop.is_closed():
            asyncio.run(_awaited(value))
        else:
            asyncio.run_coroutine_threadsafe(_awaited(value), self._loop).result(self._limits.close.seconds)

    def _abandon(self, lane: Lane, closing: Future[Any], why: str) -> None:
        tally = self._tally
        tally.abandoned_total += 1
        tally.abandoned.add(closing)
        closing.add_done_callback(tally.abandoned.discard)
        self._lanes.abandoned(why)
        lane.end()
        log.warning("%s: %s; its thread is left behind until it returns", type(self._env).__name__, why)


async def _awaited(value: Any) -> Any:
    return await value


@lru_cache(maxsize=256)
def _on_loop(cls: type[BaseTaskEnv], method: str, template: str) -> bool:
    """Whether `method` is `async`: by itself, or as the base class's over an `async` template method."""
    own = getattr(cls, method)
    if own is getattr(BaseTaskEnv, method):
        own = getattr(cls, template)
        return inspect.iscoroutinefunction(own) or own is BaseTaskEnv._close
    return inspect.iscoroutinefunction(own)


@lru_cache(maxsize=256)
def _closes_itself(cls: type[BaseTaskEnv]) -> bool:
    return cls.close is not BaseTaskEnv.close or cls._close is not BaseTaskEnv._close


@lru_cache(maxsize=256)
def is_async(cls: type[BaseTaskEnv]) -> bool:
    """Whether all its calls are made on the event loop."""
    methods = (("reset", "_initial_observation"), ("step", "_step_impl"), ("close", "_close"))
    return all(_on_loop(cls, method, template) for method, template in methods)
