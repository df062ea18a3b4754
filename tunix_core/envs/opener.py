"""Opens the environments of one suite behind a wall, and keeps the promises about their ends."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tunix_core.contracts import EnvOpener, Sandbox, Sandboxes
from tunix_core.envs.base import BaseTaskEnv
from tunix_core.envs.borrowed import Borrowed
from tunix_core.envs.building import Builder
from tunix_core.envs.drive import build, checked_env
from tunix_core.envs.lanes import Lanes
from tunix_core.envs.local import LocalCell, is_async
from tunix_core.envs.process import ProcessCell, Recipe, Workers
from tunix_core.envs.waiting import Limits, Tally, bounded
from tunix_core.errors import EnvError, UsageError, boundary
from tunix_core.specs import EnvSpec, Isolation, Timeouts
from tunix_core.tools.threads import run_aside
from tunix_core.types import Message, Opening, StepResult, Task

log = logging.getLogger(__name__)
Decide = Callable[..., Any]
OPENING, RESETTING, STEPPING, CLOSING = (
    boundary(f"env.{name}", EnvError) for name in ("open", "reset", "step", "close")
)


def make_opener(
    spec: EnvSpec,
    load: Callable[[str], Any],
    *,
    isolation: Isolation | None = None,
    python: str = "",
    timeouts: Timeouts | None = None,
    max_abandoned: int = 8,
    options: Mapping[str, Any] | None = None,
    max_steps: int | None = None,
    decide: Decide | None = None,
    sandboxes: Sandboxes | None = None,
    find_tool: Callable[[str], Any] | None = None,
) -> EnvOpener:
    """The opener of one suite's environments.

    Args:
        spec: what to open; its target is imported now, unless it lives in a virtual environment.
        load: imports a target, "module:attr".
        isolation, timeouts, max_steps: default: the spec's.
        python: of isolation "venv", the interpreter of the virtual environment that the target is installed in.
        max_abandoned: threads left behind in calls that do not return, at which the next episodes
            run in processes; also the bound on blocking calls at a time, since each may hang.
        options: for the class's constructor; what it does not take is left out. JSON values, for
            isolation "process" and "venv". A family's `name` comes among them.
        decide: `hooks.decide`; "tunix_make_env" may give the environment instead.
        sandboxes: what the environment opens sandboxes from; the caller closes it, after the opener. Such an
            environment stays in this process: what it does not trust runs in the sandbox.
        find_tool: id -> what is registered as that tool.

    Raises:
        UsageError: an isolation that is not available, or a target that is no class.
    """
    isolation = isolation or spec.isolation
    _check_isolation(spec.id, isolation, python, sandboxes)
    cls = BaseTaskEnv if isolation == "venv" else load(spec.target)  # more of it is known there alone
    if not isinstance(cls, type):
        raise UsageError(f"{spec.id}: target {spec.target!r} must be a class, a BaseTaskEnv, not {type(cls).__name__}")
    max_steps = spec.max_turns if max_steps is None else max_steps
    timeouts, workers = timeouts or spec.timeouts, Workers(python)
    given = dict(options or {})
    more = (given, max_steps, decide, sandboxes, find_tool)
    return SuiteOpener(spec, cls, isolation, workers, timeouts, max_abandoned, *more)


def _check_isolation(name: str, isolation: Isolation, python: str, sandboxes: Sandboxes | None) -> None:
    if isolation not in ("in-process", "process", "venv"):
        raise UsageError(
            f"{name}: isolation {isolation!r} is not available yet; expected 'in-process', 'process' or 'venv'. "
            'Set the suite\'s isolation = "process".'
        )
    if sandboxes is not None and isolation != "in-process":
        raise UsageError(
            f"{name}: isolation {isolation!r} can't be had together with sandboxes, which are held in this process. "
            "Leave isolation out: what the environment does not trust runs in its sandbox."
        )
    if bool(python) != (isolation == "venv"):
        raise UsageError(
            f"{name}: isolation {isolation!r} and python = {python!r}; the one needs the other. For an environment "
            'with packages of its own: isolation = "venv", and python = the interpreter of the virtual environment '
            'they are installed in, e.g. "envs/theirs/bin/python".'
        )
    if python and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise UsageError(
            f"{name}: there is no program {python!r}. Make it: python -m venv {Path(python).parent.parent}"
        )


class Cell(Protocol):
    """What holds one environment; every call is bounded in time."""

    async def open(self) -> None: ...
    def reset(self, seed: int) -> Awaitable[Opening]: ...
    def step(self, action: Message) -> Awaitable[StepResult]: ...
    def close_at_once(self) -> bool:
        """Closes it if nothing needs to be waited for; else False, and `close` is to be called."""
        ...

    async def close(self) -> None: ...


class Handle:
    """One open environment; satisfies `contracts.EnvHandle`."""

    def __init__(
        self, cell: Cell, tally: Tally, forget: Callable[[Handle], None], borrowed: Borrowed | None = None
    ) -> None:
        self._cell, self._tally, self._forget, self._borrowed = cell, tally, forget, borrowed
        self._closing: asyncio.Future[None] | None = None

    @property
    def sandbox(self) -> Sandbox | None:
        return None if self._borrowed is None else self._borrowed.first

    async def reset(self, seed: int) -> Opening:
        with RESETTING:
            self._check_open()
            return await self._cell.reset(seed)

    async def step(self, action: Message) -> StepResult:
        with STEPPING:
            self._check_open()
            return await self._cell.step(action)

    async def close(self) -> None:
        """Closes once, whoever calls; a caller that is cancelled meanwhile leaves the closing to go on."""
        if self._closing is None:
            at_once = self._borrowed is None and self._cell.close_at_once()
            self._closing = self._closed() if at_once else asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            with CLOSING:
                await self._cell.close()
        except EnvError as error:
            timed_out = error.kind == "env_timeout"
            self._tally.close_timeouts += timed_out
            self._tally.close_failures += not timed_out
            log.warning("closing an environment: %s", error)
        finally:
            if self._borrowed is not None:
                await self._borrowed.aclose()
            self._count()

    def _closed(self) -> asyncio.Future[None]:
        self._count()
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        closed.set_result(None)
        return closed

    def _count(self) -> None:
        self._tally.closed += 1
        self._forget(self)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise EnvError("the environment is closed")


class SuiteOpener:
    """Opens one suite's environments; satisfies `contracts.EnvOpener`. See `make_opener`."""

    def __init__(
        self,
        spec: EnvSpec,
        cls: type,
        isolation: Isolation,
        workers: Workers,
        timeouts: Timeouts,
        max_abandoned: int,
        options: Mapping[str, Any],
        max_steps: int,
        decide: Decide | None,
        sandboxes: Sandboxes | None = None,
        find_tool: Callable[[str], Any] | None = None,
    ) -> None:
        self._sandboxes, self._find_tool = sandboxes, find_tool
        self._spec, self._cls, self._isolation, self._limits = spec, cls, isolation, Limits.of(timeouts)
        self._max_abandoned, self._options, self._max_steps, self._decide = max_abandoned, options, max_steps, decide
        self._tally = Tally()
        self._lanes = Lanes(spec.id, max(1, max_abandoned), self._tally)
        self._builder = Builder(self._lanes) if issubclass(cls, BaseTaskEnv) and is_async(cls) else None
        self._workers = workers
        self._handles: set[Handle] = set()

    async def open(self, task: Task) -> Handle:
        """The environment of `task`, built but not reset.

        Raises:
            EnvError: its constructor raised, ran out of time, or gave something else.
        """
        with OPENING:
            borrowed = None if self._sandboxes is None else Borrowed(self._sandboxes)
            cell = await self._cell(task, borrowed)
            handle = Handle(cell, self._tally, self._handles.discard, borrowed)
            self._handles.add(handle)
            self._tally.opened += 1
            try:
                await cell.open()
            except BaseException:
                await handle.close()
                raise
            return handle

    async def aclose(self) -> None:
        """Closes what is open, and ends the idle threads and the processes."""
        await asyncio.gather(*(handle.close() for handle in tuple(self._handles)))
        if self._builder is not None:
            await self._builder.aclose()
        self._lanes.end()
        self._limits.end()
        await self._workers.aclose()

    def statistics(self) -> Mapping[str, float]:
        tally = self._tally
        return {
            "opened": tally.opened,
            "closed": tally.closed,
            "open": len(self._handles),
            "close_failures": tally.close_failures,
            "close_timeouts": tally.close_timeouts,
            "abandoned_threads": len(tally.abandoned),
            "abandoned_threads_total": tally.abandoned_total,
            "uncancelled_calls": len(tally.uncancelled),
            "threads_made": self._lanes.made,
            "processes": len(self._workers),
            "in_processes": float(self._isolation != "in-process"),
        }

    async def _cell(self, task: Task, borrowed: Borrowed | None) -> Cell:
        self._retreat()
        if self._isolation == "in-process":
            return self._local(lambda: self._equipped(self._made_or_built(task), borrowed))
        if self._decide is not None:
            work = asyncio.wrap_future(run_aside(lambda: self._made(task)))
            made = await bounded(work, self._limits.reset, "tunix_make_env", self._tally)
            if made is not None:
                return self._local(lambda: made)
        return ProcessCell(self._recipe(task), self._workers, self._limits, self._tally)

    def _retreat(self) -> None:
        """Goes over to processes when too many threads hang."""
        hanging = len(self._tally.abandoned) >= self._max_abandoned
        if hanging and self._isolation == "in-process" and self._sandboxes is None:
            self._isolation = "process"
            log.warning(
                "%s: %d threads are left behind in calls that do not return; its next episodes run in processes",
                self._spec.id,
                len(self._tally.abandoned),
            )

    def _local(self, make: Callable[[], BaseTaskEnv]) -> LocalCell:
        return LocalCell(make, self._lanes, self._limits, self._tally, self._builder)

    def _equipped(self, env: BaseTaskEnv, borrowed: Borrowed | None) -> BaseTaskEnv:
        """The environment with what it may reach of the run."""
        if borrowed is not None:
            env.sandboxes = borrowed
        if self._find_tool is not None:
            env.find_tool = self._find_tool
        return env

    def _made(self, task: Task) -> BaseTaskEnv | None:
        """What a plugin gives instead, if one does."""
        made = self._decide("tunix_make_env", spec=self._spec, task=task) if self._decide else None
        return None if made is None else checked_env(made)

    def _made_or_built(self, task: Task) -> BaseTaskEnv:
        made = self._made(task)
        return build(self._cls, task, self._max_steps, self._options) if made is None else made

    def _recipe(self, task: Task) -> Recipe:
        module, _, attr = self._spec.target.partition(":")
        loaded = sys.modules.get(module) or sys.modules.get(self._cls.__module__)
        file = None if self._isolation == "venv" else getattr(loaded, "__file__", None)
        return Recipe(module, attr, file, task.to_json(), self._max_steps, self._options)
