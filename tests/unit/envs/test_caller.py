"""All of an environment's calls on the event loop are made in one task."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tunix_core.contracts import EnvOpener
from tunix_core.envs import BaseTaskEnv
from tunix_core.envs.caller import Caller
from tunix_core.envs.waiting import Limit, Tally
from tunix_core.errors import EnvError
from tunix_core.profiling import recording, span
from tunix_core.specs import EnvSpec
from tunix_core.testing.echo import ECHO
from tunix_core.types import Message, Task

HELLO = Message.of("assistant", "hello")


def spec_of(cls: type) -> EnvSpec:
    return EnvSpec("test/session", f"{__name__}:{cls.__name__}", ECHO.tasks, max_turns=4)


def test_what_one_call_opens_another_closes_and_sees(suite: Callable[..., EnvOpener]) -> None:
    async def main() -> None:
        opener = suite("Session")
        env = await opener.open(Task("t"))
        await env.reset(1)
        assert [m.text for m in (await env.step(HELLO)).observation] == ["ada"]
        await env.step(HELLO)
        before = asyncio.all_tasks()
        await env.close()
        await opener.aclose()
        assert not opener.statistics()["close_failures"]
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()} < before

    asyncio.run(main())


def test_what_a_call_records_is_inside_the_span_it_is_made_in() -> None:
    async def main() -> None:
        caller, limit = Caller(Tally()), Limit(10, "timeouts.step_s")

        async def work() -> None:
            with span("inner"):
                await asyncio.sleep(0)

        for turn in range(2):
            with span("env.step", turn=turn):
                await caller.call(work, limit, "env.step")
        caller.end()
        limit.close()

    with recording() as recorder:
        asyncio.run(main())
    spans = recorder.drain()
    steps = {s.id: s.tags["turn"] for s in spans if s.name == "env.step"}
    assert [steps[s.parent] for s in spans if s.name == "inner"] == [0, 1]


def test_after_a_call_that_was_cancelled_comes_another_task() -> None:
    async def main() -> None:
        tally = Tally()
        caller, short, long = Caller(tally), Limit(0.01, "timeouts.step_s"), Limit(10, "timeouts.close_s")

        async def swallow() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "what nobody waits for"
            return ""

        with pytest.raises(EnvError, match=r"env\.step \(timeouts\.step_s\) took longer than 0\.01 s"):
            await caller.call(swallow, short, "env.step")
        assert not tally.uncancelled
        assert await caller.call(lambda: "closed", long, "env.close") == "closed"
        caller.end()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        long.close()

    asyncio.run(main())


def test_what_a_call_left_open_may_cancel_the_task_between_two_calls() -> None:
    async def main() -> None:
        caller, limit = Caller(Tally()), Limit(10, "timeouts.step_s")
        served: list[asyncio.Task[Any]] = []

        async def open_session() -> None:
            served.append(asyncio.current_task())  # pyright: ignore[reportArgumentType]

        await caller.call(open_session, limit, "env.reset")
        for turns in range(3):  # of the loop, between the cancellation and the next call
            served[-1].cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            await caller.call(open_session, limit, "env.step")
        assert len(set(served)) == 4
        caller.end()
        limit.close()

    asyncio.run(main())


def test_what_is_called_while_another_call_goes_on_does_not_wait_for_it() -> None:
    async def main() -> None:
        caller, limit = Caller(Tally()), Limit(10, "timeouts.step_s")
        released = asyncio.Event()
        step = asyncio.create_task(caller.call(released.wait, limit, "env.step"))
        await asyncio.sleep(0)
        await caller.call(released.set, limit, "env.close")
        assert await step is True
        caller.end()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        limit.close()

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["released", "cancelled", "overdue"])
def test_a_call_that_goes_on_when_no_more_are_made_still_ends_as_it_would(ends: str) -> None:
    async def main() -> None:
        caller, limit = Caller(Tally()), Limit(0.02 if ends == "overdue" else 10, "timeouts.step_s")
        released, left = asyncio.Event(), []

        async def work() -> None:
            try:
                await released.wait()
            finally:
                left.append(True)

        step = asyncio.create_task(caller.call(work, limit, "env.step"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.end()
        if ends == "released":
            released.set()
        if ends == "cancelled":
            step.cancel()
        await asyncio.wait([step])
        assert left == [True]
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        limit.close()
        if not step.cancelled():
            step.exception()

    asyncio.run(main())


class MuteExit(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(1), ValueError("no"), GeneratorExit(2), MuteExit()])
def test_whatever_a_call_raises_is_its_callers(error: BaseException) -> None:
    async def main() -> None:
        caller, limit = Caller(Tally()), Limit(10, "timeouts.step_s")

        async def raises() -> None:
            await asyncio.sleep(0)
            raise error

        def raises_at_once() -> None:
            raise error

        for work in (raises, raises_at_once):
            with pytest.raises(Exception, match=rf"^(coroutine raised )?{type(error).__name__}|^no$"):
                await caller.call(work, limit, "env.step")
            assert await caller.call(lambda: 1, limit, "env.step") == 1
        caller.end()
        limit.close()

    asyncio.run(main())


def test_an_error_holds_no_cycle() -> None:
    class Mark:
        pass

    async def main() -> int:
        caller, limit = Caller(Tally()), Limit(10, "timeouts.step_s")

        async def raises(mark: Mark) -> None:
            raise ValueError("no")

        mark = Mark()
        with suppress(ValueError):
            await caller.call(lambda: raises(mark), limit, "env.step")
        await asyncio.sleep(0)  # the loop lets go of what it woke this with
        held = sys.getrefcount(mark)
        caller.end()
        limit.close()
        return held

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(main()) == 2  # the name here, and the argument of the count
    finally:
        gc.enable()


class Blocking(BaseTaskEnv):
    def _initial_observation(self) -> str:
        return "x"

    def _step_impl(self, action: str) -> Any:
        raise ValueError("no")


class Coroutines(Blocking):
    async def _initial_observation(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "x"

    async def _step_impl(self, action: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise ValueError("no")


@pytest.mark.parametrize("cls", [Blocking, Coroutines])
def test_an_environment_whose_step_raised_is_held_by_no_cycle(cls: type[BaseTaskEnv]) -> None:
    from tunix_core.envs.opener import make_opener

    held: list[weakref.ref[BaseTaskEnv]] = []

    class Known(cls):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            held.append(weakref.ref(self))

    async def main() -> bool:
        opener = make_opener(spec_of(Blocking), lambda target: Known)
        env = await opener.open(Task("t"))
        await env.reset(1)
        with suppress(EnvError):
            await env.step(HELLO)
        await env.close()
        del env
        await opener.aclose()  # the thread's last call is over
        await asyncio.sleep(0)
        return held[0]() is not None

    gc.collect()
    gc.disable()
    try:
        assert not asyncio.run(main())
    finally:
        gc.enable()
