"""Ctrl-C once asks, twice stops, and a third time ends the process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tunix_core.run.interrupt import Interrupt


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as in a worker of pytest's
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_asks_and_the_work_goes_on() -> None:
    async def work() -> str:
        with Interrupt() as interrupt:
            waiting = asyncio.create_task(interrupt.wait())
            await asyncio.sleep(0)
            assert not waiting.done()
            press()
            await asyncio.wait_for(waiting, 10)
            await asyncio.sleep(0)
            return "saved"

    assert asyncio.run(work()) == "saved"


def test_the_second_stops_at_once() -> None:
    reached: list[str] = []

    async def work() -> None:
        with Interrupt() as interrupt:
            press()
            await asyncio.wait_for(interrupt.wait(), 10)
            reached.append("asked")
            try:
                press()
            finally:
                assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "a third would end the process"
            reached.append("went on")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert reached == ["asked"]


def test_the_second_reaches_what_holds_the_loop_up() -> None:
    async def work() -> str:
        with Interrupt() as interrupt:
            try:  # the loop is never free in here
                press()
                press()
                return "nothing reached it"
            except KeyboardInterrupt:
                await asyncio.wait_for(interrupt.wait(), 10)
                return "stopped"

    assert asyncio.run(work()) == "stopped"


@pytest.mark.parametrize("pressed", [False, True])
def test_afterwards_it_is_pythons_own_again(pressed: bool) -> None:
    async def work() -> None:
        with Interrupt() as interrupt:
            if pressed:
                press()
                await asyncio.wait_for(interrupt.wait(), 10)
        press()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_in_another_thread_is_left_alone():
    async def main():
        with Interrupt():
            return signal.getsignal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, main()).result(10) is before
