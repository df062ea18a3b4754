"""An environment in this process: `async` code on the event loop, blocking code in a thread.

A thread cannot be killed. When a call outlives its limit the episode ends, the thread is left
behind, and the environment's `close` waits in that thread for the call to return.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

from tunix_core.envs.base import BaseTaskEnv
from tunix_core.envs.drive import advance, begin
from tunix_core.envs.waiting import Tally, bounded, wait_for_thread
from tunix_core.errors import EnvError
from tunix_core.specs import Timeouts
from tunix_core.tools.threads import Lane
from tunix_core.types import Message, Opening, StepResult

log = logging.getLogger(__name__)
BUILDERS = 32  # environments on the event loop that are built at once: a thread each


class Lanes:
    """Threads for blocking environments, reused from one episode to the next."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[Lane] = []
        self.made = 0
        self.builders = asyncio.Semaphore(BUILDERS)

    def lease(self) -> Lane:
        if self._idle:
            return self._idle.pop()
        self.made += 1
        return Lane(f"tunix-env-{self._name}-{self.made}")

    def give_back(self, lane: Lane) -> None:
        self._idle.append(lane)

    def end(self) -> None:
        """Ends the idle threads."""
        while self._idle:
            lane = self._idle.pop()
            lane.end()
            lane.join(1.0)


class LocalCell:
    """Holds one environment in this process.

    Args:
        make: builds the environment; may block.
        cls: what it will most likely be; one on the event loop needs its thread only while it is built.
    """

    def __init__(
        self, make: Callable[[], BaseTaskEnv], lanes: Lanes, timeouts: Timeouts, tally: Tally, cls: type
    ) -> None:
        self._brief = issubclass(cls, BaseTaskEnv) and _is_async(cls)
        self._make, self._lanes, self._timeouts, self._tally = make, lanes, timeouts, tally
        self._lane: Lane | None = None
        self._in_lane: Future[Any] | None = None  # the lane's newest call
        self._env: BaseTaskEnv | None = None
        self._timed_out = False
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        async with self._lanes.builders if self._brief else nullcontext():
            await self._call(self._build, False, self._timeouts.reset_s, "env.open (timeouts.reset_s)")
            if self._env is not None and _is_async(type(self._env)):
                self._release()

    async def reset(self, seed: int) -> Opening:
        env = self._opened()
        on_loop = _on_loop(type(env), "reset", "_initial_observation")
        return await self._call(
            lambda: begin(env, seed), on_loop, self._timeouts.reset_s, "env.reset (timeouts.reset_s)"
        )

    async def step(self, action: Message) -> StepResult:
        env = self._opened()
        on_loop = _on_loop(type(env), "step", "_step_impl")
        return await self._call(
            lambda: advance(env, action), on_loop, self._timeouts.step_s, "env.step (timeouts.step_s)"
        )

    async def close(self) -> None:
        """Closes the environment: at once, or in its thread when the call that hangs there returns."""
        if self._lane is not None:
            await self._close_in_lane(self._lane)
        elif self._env is not None:
            what = "env.close (timeouts.close_s)"
            await self._call(self._env.close, True, self._timeouts.close_s, what)

    def _build(self) -> None:
        self._env = self._make()

    def _opened(self) -> BaseTaskEnv:
        if self._env is None:
            raise EnvError("the environment is not open")
        return self._env

    async def _call(self, call: Callable[[], Any], on_loop: bool, limit_s: float, what: str) -> Any:
        """Makes a call on the event loop or in the lane, and awaits what it gives if that is awaitable."""
        work = self._loop.create_task(self._work(call, on_loop))
        try:
            return await bounded(work, limit_s, what, self._tally)
        except EnvError as error:
            self._timed_out |= error.kind == "env_timeout"
            raise

    async def _work(self, call: Callable[[], Any], on_loop: bool) -> Any:
        try:
            value = call() if on_loop else await asyncio.wrap_future(self._submit(call))
            return await value if inspect.isawaitable(value) else value
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # an environment may not end the trainer: SystemExit, a panic in Rust
            raise EnvError(f"{type(error).__name__}: {error}") from error

    def _submit(self, call: Callable[[], Any]) -> Future[Any]:
        self._lane = self._lane or self._lanes.lease()
        self._in_lane = self._lane.submit(call)
        return self._in_lane

    def _release(self) -> None:
        if self._lane is not None:
            self._lanes.give_back(self._lane)
            self._lane = None

    async def _close_in_lane(self, lane: Lane) -> None:
        hangs = self._timed_out and self._in_lane is not None and not self._in_lane.done()
        closing = lane.submit(self._close_here)
        if await wait_for_thread(closing, 0 if hangs else self._timeouts.close_s):
            self._release()
            closing.result()
            return
        self._abandon(lane, closing)
        if not hangs:
            raise EnvError(
                f"env.close (timeouts.close_s) took longer than {self._timeouts.close_s:g} s", kind="env_timeout"
            )

    def _close_here(self) -> None:
        """Runs in the lane, behind whatever hangs there."""
        value = self._env.close() if self._env is not None else None
        if not inspect.isawaitable(value):
            return
        if self._loop.is_closed():
            asyncio.run(_awaited(value))
        else:
            asyncio.run_coroutine_threadsafe(_awaited(value), self._loop).result(self._timeouts.close_s)

    def _abandon(self, lane: Lane, closing: Future[Any]) -> None:
        tally = self._tally
        tally.abandoned_total += 1
        tally.abandoned.add(closing)
        closing.add_done_callback(tally.abandoned.discard)
        lane.end()
        log.warning("a call of %s did not return; its thread is left behind until it does", type(self._env).__name__)


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


def _is_async(cls: type[BaseTaskEnv]) -> bool:
    methods = (("reset", "_initial_observation"), ("step", "_step_impl"), ("close", "_close"))
    return all(_on_loop(cls, method, template) for method, template in methods)
