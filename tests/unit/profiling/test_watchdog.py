"""The loop's watchdog, with a clock moved by hand and a stack of one's own."""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tunix_core.profiling import Watchdog
from tunix_core.profiling.watchdog import BEAT_S, CULPRITS


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def blocking_grader() -> FrameType:
    return sys._getframe()


def blocking_parser() -> FrameType:
    return sys._getframe()


def watched(check: Callable[[Watchdog, Clock, list[Any]], None]) -> None:
    async def main() -> None:
        clock, stack = Clock(), [blocking_grader]
        check(Watchdog(limit_s=0.25, clock=clock, frame=lambda: stack[0]()), clock, stack)

    asyncio.run(main())


def test_the_lag_is_how_late_each_beat_was_or_would_have_been() -> None:
    def check(dog: Watchdog, clock: Clock, _: list[Any]) -> None:
        for index in range(100):
            clock.now += BEAT_S + (0.2 if index == 50 else 0.001)
            dog.beat()
        found = dog.statistics()
        assert found["lag_ms_p50"] == pytest.approx(1.0) and found["lag_ms_max"] == pytest.approx(200.0)
        assert found["lag_ms_p99"] == pytest.approx(180.0), "ten beats fell into that hold"
        assert found["held_up"] == 0
        assert dog.statistics()["lag_ms_max"] == 0.0, "each beat is told once"

    watched(check)


def test_what_holds_the_loop_is_named_once_for_each_culprit(caplog: pytest.LogCaptureFixture) -> None:
    def check(dog: Watchdog, clock: Clock, stack: list[Any]) -> None:
        for culprit in (blocking_grader, blocking_grader, blocking_parser):
            stack[0] = culprit
            clock.now += 0.2
            dog.look()
            clock.now += 0.2  # overdue now, and looked at twice
            dog.look()
            dog.look()
            dog.beat()
        assert dog.statistics()["held_up"] == 3
        assert sorted(dog.culprits.values()) == [1, 2]

    with caplog.at_level(logging.WARNING):
        watched(check)
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert "blocking_grader" in said[0] and "blocking_parser" in said[1]


def test_culprits_are_told_apart_up_to_a_number(caplog: pytest.LogCaptureFixture) -> None:
    def check(dog: Watchdog, clock: Clock, stack: list[Any]) -> None:
        for index in range(CULPRITS + 5):
            held: dict[str, Any] = {}
            exec(f"import sys\ndef culprit_{index}(): return sys._getframe()", held)
            stack[0] = held[f"culprit_{index}"]
            clock.now += 0.5
            dog.look()
            dog.beat()
        assert len(dog.culprits) == CULPRITS + 1 and dog.culprits["others"] == 5

    with caplog.at_level(logging.WARNING):
        watched(check)
    assert len(caplog.records) == CULPRITS


def test_a_hold_by_nothing_on_the_loop_is_counted_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Another thread keeps the interpreter: innermost is the loop itself, which no environment could mend. What
    waits in a selector of its own, as a pipe of `subprocess` does, is a culprit."""

    def inside(file: str, call: Callable[[], FrameType]) -> FrameType:
        held: dict[str, Any] = {"call": call}
        exec(compile("def waiting(): return call()", file, "exec"), held)
        return held["waiting"]()

    def check(dog: Watchdog, clock: Clock, stack: list[Any]) -> None:
        held: dict[str, Any] = {}
        exec(compile("import sys\ndef select(): return sys._getframe()", selectors.__file__, "exec"), held)
        stack[0] = lambda: inside(asyncio.runners.__file__, held["select"])
        clock.now += 0.5
        dog.look()
        dog.beat()
        stack[0] = lambda: inside(asyncio.runners.__file__, lambda: inside("subprocess.py", held["select"]))
        clock.now += 0.5
        dog.look()
        assert dog.statistics()["held_up"] == 2
        assert ["another thread" in culprit for culprit in dog.culprits] == [True, False]

    with caplog.at_level(logging.INFO, logger="tunix_core.profiling.watchdog"):
        watched(check)
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]


def test_a_loop_on_time_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    def check(dog: Watchdog, clock: Clock, _: list[Any]) -> None:
        for _ in range(50):
            clock.now += BEAT_S
            dog.look()
            dog.beat()
        assert dog.culprits == {}

    watched(check)
    assert not caplog.records


def test_it_beats_on_a_real_loop_and_ends_with_it() -> None:
    async def main() -> dict[str, int]:
        dog = Watchdog(limit_s=1e6)
        dog.start()
        beaten = asyncio.Event()
        beat = dog.beat

        def told() -> None:
            beat()
            beaten.set()

        dog.beat = told  # type: ignore[method-assign]
        await asyncio.wait_for(beaten.wait(), 30)
        dog.stop()
        return dog.culprits

    assert asyncio.run(main()) == {}


def test_a_hold_that_nobody_waits_in_is_not_told() -> None:
    async def main() -> None:
        clock, waits = Clock(), [False]
        dog = Watchdog(limit_s=0.25, clock=clock, frame=blocking_grader, waited_for=lambda: waits[0])
        clock.now += 1.0
        dog.look()
        assert not dog.culprits
        waits[0] = True
        dog.look()
        assert len(dog.culprits) == 1, "an episode began while the loop was held"

    asyncio.run(main())
