from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tunix_core.errors import GoldError, GraderError
from tunix_core.rewards import (
    GraderTimeout,
    WorkerPool,
    close_shared_workers,
    grade_in_worker,
    grade_in_worker_async,
    shared_workers,
)
from tunix_core.rewards.child import MAX_BYTES

FILE = Path(__file__).with_name("grader_targets.py")


def target(name: str) -> tuple[str, str, str]:
    return "grader_targets", name, str(FILE)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(2)
    yield pool
    pool.close()


def call(pool: WorkerPool, name: str, *args: Any, cpu_s: float = 5.0, wall_s: float = 60.0, **kwargs: Any) -> Any:
    return pool.call(target(name), *args, cpu_s=cpu_s, wall_s=wall_s, **kwargs)


def test_a_call_gives_its_value_in_another_process_that_stays_warm(pool: WorkerPool) -> None:
    assert call(pool, "add", 2, b=3) == 5
    first, second = call(pool, "count"), call(pool, "count")
    assert first[0] == second[0] != os.getpid()
    assert second[1] == first[1] + 1


def test_what_the_call_raises_is_raised_here_and_the_worker_lives(pool: WorkerPool) -> None:
    before = pool.statistics()["started"]
    with pytest.raises(GoldError, match="no gold") as caught:
        call(pool, "fail", "gold")
    assert caught.value.kind == "bad_gold"
    with pytest.raises(ValueError, match="no value") as raised:
        call(pool, "fail", "value")
    assert "grader_targets.py" in raised.value.__notes__[0]
    with pytest.raises(RuntimeError, match="Stubborn: 1 and 2"):
        call(pool, "fail", "stubborn")
    with pytest.raises(SystemExit):
        call(pool, "leave")
    assert pool.statistics()["started"] == max(before, 1)


@pytest.mark.parametrize("endless", ["spin", "compute_for_ever"])
def test_cpu_used_up_twice_is_a_timeout_and_the_pool_goes_on(pool: WorkerPool, endless: str) -> None:
    before = pool.statistics()
    with pytest.raises(GraderTimeout) as caught:
        call(pool, endless, cpu_s=0.1)
    after = pool.statistics()
    assert caught.value.kind == "grader_timeout"
    assert (after["cpu_timeouts"] - before["cpu_timeouts"], after["grader_timeouts"] - before["grader_timeouts"]) == (
        2,
        1,
    )
    assert call(pool, "add", 1) == 1


def test_a_call_over_its_limit_once_is_tried_again_in_a_fresh_worker(pool: WorkerPool, tmp_path: Path) -> None:
    before = pool.statistics()["grader_timeouts"]
    assert call(pool, "spin_first", str(tmp_path / "tried"), cpu_s=0.1) == 1, "the first call of that process"
    assert pool.statistics()["grader_timeouts"] == before


def test_waiting_costs_no_cpu(pool: WorkerPool) -> None:
    assert call(pool, "sleep", 0.3, cpu_s=0.1) == 0.3


def test_wall_clock_spent_without_cpu_is_a_lost_grader(pool: WorkerPool) -> None:
    before = pool.statistics()
    with pytest.raises(GraderError) as caught:
        call(pool, "sleep", 60.0, wall_s=0.2)
    assert not isinstance(caught.value, GraderTimeout)
    assert caught.value.kind == "grader_lost"
    assert pool.statistics()["lost"] == before["lost"] + 1
    assert pool.statistics()["cpu_timeouts"] == before["cpu_timeouts"]


def test_a_worker_that_dies_is_a_lost_grader_and_is_replaced(pool: WorkerPool) -> None:
    with pytest.raises(GraderError, match="exit status 3") as caught:
        call(pool, "die")
    assert caught.value.kind == "grader_lost"
    assert call(pool, "add", 4) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="a process is waited for by its descriptor")
def test_what_a_worker_that_died_while_idle_left_behind_is_killed() -> None:
    pool = WorkerPool(1)
    worker, child = call(pool, "start_child")
    descriptor = os.pidfd_open(child)
    os.kill(worker, signal.SIGKILL)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    assert call(pool, "add", 4) == 4
    ended = select.select([descriptor], [], [], 10.0)[0]
    os.close(descriptor)
    pool.close()
    assert ended


@pytest.mark.parametrize("said", ["7fffffff", "ffffffff" + "0000010000000000"])
def test_a_worker_that_speaks_of_more_than_it_may_send_is_killed_and_replaced(pool: WorkerPool, said: str) -> None:
    before = pool.statistics()["lost"]
    with pytest.raises(GraderError, match="spoke of an outcome of more than 67,108,864 bytes") as caught:
        call(pool, "babble", said)
    assert caught.value.kind == "grader_lost"
    assert pool.statistics()["lost"] == before + 1
    assert call(pool, "add", 4) == 4


def test_what_is_too_large_to_cross_is_refused_and_the_worker_lives(pool: WorkerPool) -> None:
    before = pool.statistics()["lost"]
    with pytest.raises(ValueError, match=r"a call may take 67,108,864 bytes, pickled, .*not 67,108,9\d\d\. Give less"):
        call(pool, "add", bytes(MAX_BYTES))
    with pytest.raises(ValueError, match=r"a call's value may take 67,108,864 bytes"):
        call(pool, "give", MAX_BYTES)
    with pytest.raises(RuntimeError, match=r"ValueError: .b'too much'") as caught:
        call(pool, "fail_with", MAX_BYTES)
    assert len(str(caught.value)) == 10_000
    assert len(call(pool, "give", MAX_BYTES - 100)) == MAX_BYTES - 100
    assert pool.statistics()["lost"] == before


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_a_call_can_not_take_all_memory() -> None:
    pool = WorkerPool(1, memory_bytes=1 << 30)
    with pytest.raises(MemoryError):
        call(pool, "devour")
    pool.close()


def test_a_worker_imports_its_target_and_little_else(pool: WorkerPool) -> None:
    loaded = call(pool, "modules")
    assert not loaded & {"jax", "jaxlib", "flax", "gymnasium", "pytest", "pydantic"}


def test_a_target_that_is_not_there_says_so(pool: WorkerPool) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        pool.call("no_such_module:f", cpu_s=1.0, wall_s=60.0)
    with pytest.raises(ValueError, match="module:attr"):
        pool.call("math.sqrt", cpu_s=1.0, wall_s=60.0)


def test_threads_share_the_pool(pool: WorkerPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda i: call(pool, "add", i), range(40))) == list(range(40))
    after = pool.statistics()
    assert after["alive"] <= after["size"] == 2
    assert after["running"] == after["waiting"] == 0


def test_a_retry_has_the_pool_alone() -> None:
    pool = WorkerPool(2, queue_s=0.1)
    with pool._place(alone=True), pytest.raises(GraderError, match="no worker became free"):
        call(pool, "add", 1)
    with pool._place(alone=False), pytest.raises(GraderError, match="no worker became free"), pool._place(alone=True):
        pass
    assert call(pool, "add", 1) == 1
    pool.close()


def test_closing_ends_what_runs_and_refuses_what_comes(tmp_path: Path) -> None:
    pool, started = WorkerPool(1), tmp_path / "started"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(call, pool, "sleep", 60.0, str(started))
        wait_for(started)
        pool.close()
        with pytest.raises(GraderError):
            running.result(timeout=30)
    with pytest.raises(GraderError, match="closed"):
        call(pool, "add", 1)
    assert pool.statistics()["alive"] == 0


def wait_for(path: Path) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if path.exists():
            return
        pause.wait(0.01)
    raise AssertionError(f"{path} never appeared")


@pytest.mark.skipif(sys.platform != "linux", reason="a process is waited for by its descriptor")
def test_a_worker_does_not_outlive_its_parent() -> None:
    code = (
        "import os, threading\n"
        "from tunix_core.rewards import WorkerPool\n"
        "pool = WorkerPool(1)\n"
        f"print(pool.call({target('count')!r}, cpu_s=5, wall_s=60)[0], flush=True)\n"
        f"busy = threading.Thread(target=pool.call, args=({target('sleep')!r}, 60), kwargs=dict(cpu_s=5, wall_s=60))\n"
        "busy.daemon = True\n"
        "busy.start()\n"
        "input()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout and parent.stdin
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        parent.communicate("\n", timeout=30)
    ended = select.select([descriptor], [], [], 30.0)[0]
    os.close(descriptor)
    assert ended


def test_the_shared_pool_serves_threads_and_coroutines_and_comes_back_after_closing() -> None:
    assert grade_in_worker("math:sqrt", 9) == 3.0
    assert asyncio.run(grade_in_worker_async("math:sqrt", 16)) == 4.0
    assert shared_workers().statistics()["calls"] == 2
    close_shared_workers()
    assert shared_workers().statistics()["calls"] == 0
    assert grade_in_worker("operator:add", 1, 2) == 3
    close_shared_workers()
