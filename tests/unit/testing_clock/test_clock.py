"""Virtual time: jumps, order, threads, deadlocks."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from tunix_core.testing import clock


def test_an_hour_of_sleep_costs_no_time_and_is_exact() -> None:
    async def main() -> tuple[float, float]:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        return started, asyncio.get_running_loop().time()

    before = time.monotonic()
    assert clock.run(main(), timeout_s=4000) == (0.0, 3600.0)
    assert time.monotonic() - before < 5


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, *naps: float) -> None:
            for nap in naps:
                await asyncio.sleep(nap)
                woken.append((name, round(asyncio.get_running_loop().time(), 6)))

        await asyncio.gather(sleeper("a", 0.3, 0.3), sleeper("b", 0.2, 0.2, 0.5), sleeper("c", 10))
        return woken

    assert clock.run(main()) == [("b", 0.2), ("a", 0.3), ("b", 0.4), ("a", 0.6), ("b", 0.9), ("c", 10.0)]


def test_timeouts_fire_at_their_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100), timeout=7)
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(12.0)


def test_time_stands_still_while_a_thread_works() -> None:
    async def main() -> tuple[str, float]:
        gate = threading.Event()

        def work() -> str:
            assert gate.wait(10)
            return "done"

        async def later() -> None:
            await asyncio.sleep(1)

        work_done = asyncio.ensure_future(asyncio.to_thread(work))
        watcher = asyncio.create_task(later())
        asyncio.get_running_loop().call_soon(threading.Timer(0.05, gate.set).start)
        result = await work_done
        at = asyncio.get_running_loop().time()
        await watcher
        return result, at

    assert clock.run(main()) == ("done", 0.0)


def test_hold_covers_a_thread_the_loop_does_not_know() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        threading.Timer(0.05, loop.call_soon_threadsafe, (arrived.set,)).start()
        with clock.hold():
            async with asyncio.timeout(1):
                await arrived.wait()
        return loop.time()

    assert clock.run(main()) == 0.0


def test_hold_does_nothing_in_real_time() -> None:
    async def main() -> str:
        with clock.hold():
            return "fine"

    assert asyncio.run(main()) == "fine"


def test_a_hung_thread_is_given_up_after_patience_and_its_timeout_fires() -> None:
    gate = threading.Event()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(gate.wait), timeout=60)
        return asyncio.get_running_loop().time()

    try:
        assert clock.run(main(), patience_s=0.02) == 60.0
    finally:
        gate.set()


def test_a_deadlock_raises_at_once_and_says_who_waits_where() -> None:
    async def stuck_consumer(queue: asyncio.Queue[int]) -> int:
        return await queue.get()

    async def main() -> None:
        waiting = asyncio.create_task(stuck_consumer(asyncio.Queue()), name="consumer-7")
        await waiting

    with pytest.raises(clock.Deadlock) as caught:
        clock.run(main())
    assert "consumer-7" in str(caught.value)
    assert "return await queue.get()" in str(caught.value)


def test_the_run_ends_after_its_virtual_timeout_and_cleans_up() -> None:
    cleaned = []

    async def main() -> None:
        try:
            for _ in range(100):
                await asyncio.sleep(1)
        finally:
            cleaned.append(asyncio.get_running_loop().time())

    with pytest.raises(clock.OutOfTime, match="timeout_s=9"):
        clock.run(main(), timeout_s=9.5)
    assert cleaned == [9.0]


def test_the_error_of_main_comes_out_and_other_tasks_are_cancelled() -> None:
    cancelled = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main() -> None:
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        assert not task.done()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        clock.run(main())
    assert cancelled == [True]


def test_a_subprocess_under_hold_is_waited_for_in_real_time() -> None:
    async def main() -> tuple[bytes, float]:
        with clock.hold():
            process = await asyncio.create_subprocess_exec("printf", "hello", stdout=asyncio.subprocess.PIPE)
            out, _ = await process.communicate()
        return out, asyncio.get_running_loop().time()

    assert clock.run(main()) == (b"hello", 0.0)


def test_a_socket_is_waited_for_when_nothing_is_scheduled() -> None:
    async def main() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            threading.Timer(0.02, theirs.send, (b"news",)).start()
            return await asyncio.get_running_loop().sock_recv(ours, 4)

    assert clock.run(main()) == b"news"
