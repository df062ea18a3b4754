"""Worker processes that can be killed, for graders that may compute for ever.

A call is limited by the worker's own CPU clock, so that a busy machine or a late event loop costs
no good answer its score. The kernel watches that clock: it ends the worker even inside a C routine.
A larger bound on the wall clock catches a call that waits.

Workers are spawned, never forked (the parent runs threads of its own); they import the module of
the call's target and what that imports, and are kept for the next call.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from tunix_core.errors import GraderError
from tunix_core.rewards.child import MAX_BYTES, pickled
from tunix_core.rewards.threads import call_in_thread

CHILD = Path(__file__).with_name("child.py")
QUEUE_S = 600.0  # the longest wait for a free worker
MEMORY_BYTES = 8 << 30
Target = tuple[str, str, str | None]


class GraderTimeout(GraderError):
    """The call used up its CPU limit, and again when tried alone in a fresh worker.

    It is a verdict on the answer: grade it as a wrong one.
    """

    kind = "grader_timeout"
    retry = False


class WorkerPool:
    """At most `size` worker processes, started when first needed and kept warm.

    Callers beyond `size` wait their turn in the thread that calls. Safe from several threads.

    Args:
        size: how many calls run at once; default: one less than the CPUs, between 1 and 8.
        memory_bytes: address space of one worker; a call that wants more sees MemoryError.
        queue_s: seconds a call waits for a worker before it is GraderError.
    """

    def __init__(self, size: int | None = None, *, memory_bytes: int = MEMORY_BYTES, queue_s: float = QUEUE_S) -> None:
        self._size = size or min(8, max(1, (os.cpu_count() or 2) - 1))
        self._memory_bytes, self._queue_s = memory_bytes, queue_s
        self._turn = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._running = self._waiting = 0
        self._alone = self._closed = False
        self._counts: dict[str, int] = dict.fromkeys(("calls", "started", "cpu_timeouts", "grader_timeouts", "lost"), 0)

    def call(self, target: str | Target, *args: Any, cpu_s: float, wall_s: float, **kwargs: Any) -> Any:
        """Calls `target` in a worker and gives its value; blocks the calling thread.

        Args:
            target: "module:attr", or (module, attr, file) where the name alone may not lead to the file.
            args, kwargs: the call's; they are pickled, and so is the value, each into at most 64 MiB.
            cpu_s: seconds of the worker's own CPU clock; importing the target's module is free.
            wall_s: seconds from sending the call to its value, per try.

        Raises:
            GraderTimeout: `cpu_s` was used up twice, the second time alone in a fresh worker.
            GraderError: the worker was lost, `wall_s` passed, no worker became free, or the pool is closed.
            ValueError: the call or its value takes more than 64 MiB, pickled.
            Exception: whatever the target raised, with the worker's traceback as a note.
        """
        call = pickled((_whole(target), args, kwargs, cpu_s), "a call")
        self._count("calls")
        for alone in (False, True):
            try:
                returned, value = pickle.loads(self._try(call, wall_s, alone))
            except _CpuSpent:
                self._count("cpu_timeouts")
                continue
            if returned:
                return value
            raise value
        self._count("grader_timeouts")
        raise GraderTimeout(f"{_whole(target)[1]} used up {cpu_s:g} s of CPU twice, the second time alone")

    async def call_async(self, target: str | Target, *args: Any, cpu_s: float, wall_s: float, **kwargs: Any) -> Any:
        """`call`, for a coroutine. Cancelling it leaves the call to its limits."""
        bound_s = 3 * self._queue_s + 2 * wall_s + 60.0  # each wait within has its own, smaller bound
        return await call_in_thread(
            lambda: self.call(target, *args, cpu_s=cpu_s, wall_s=wall_s, **kwargs), timeout_s=bound_s
        )

    def close(self) -> None:
        """Kills every worker; calls that run or wait end with GraderError, and so do later ones."""
        with self._turn:
            self._closed = True
            for worker in (*self._idle, *self._busy):
                worker.kill()
            for worker in self._idle:
                worker.close()
            self._idle.clear()
            self._turn.notify_all()

    async def aclose(self) -> None:
        """`close`, for a coroutine."""
        self.close()

    def statistics(self) -> Mapping[str, float]:
        """Counts since the start (calls, started, cpu_timeouts, grader_timeouts, lost), and what is now
        (size, alive, running, waiting)."""
        with self._turn:
            alive = len(self._idle) + len(self._busy)
            now = {"size": self._size, "alive": alive, "running": self._running, "waiting": self._waiting}
            return {**self._counts, **now}

    def _try(self, call: bytes, wall_s: float, alone: bool) -> bytes:
        with self._place(alone):
            worker = self._take(fresh=alone)
            try:
                return worker.call(call, wall_s)
            except GraderError:
                self._count("lost")
                raise
            finally:
                self._give_back(worker)

    @contextlib.contextmanager
    def _place(self, alone: bool) -> Iterator[None]:
        """One of `size` places; or the whole pool, for a call that must not be slowed by others."""
        with self._turn:
            self._wait_until(lambda: not self._alone and (alone or self._running < self._size))
            self._alone = alone
            self._running += 1
        try:
            if alone:
                with self._turn:
                    self._wait_until(lambda: self._running == 1)
            yield
        finally:
            with self._turn:
                self._running -= 1
                self._alone = self._alone and not alone
                self._turn.notify_all()

    def _wait_until(self, free: Callable[[], bool]) -> None:
        self._waiting += 1
        in_time = self._turn.wait_for(lambda: self._closed or free(), self._queue_s)
        self._waiting -= 1
        if self._closed:
            raise GraderError("the worker pool is closed")
        if not in_time:
            raise GraderError(f"no worker became free within {self._queue_s:g} s; {self._waiting} more calls wait")

    def _take(self, *, fresh: bool) -> _Worker:
        with self._turn:
            if self._closed:
                raise GraderError("the worker pool is closed")
            worker = None if fresh else self._living_idle()
            if worker is None:
                worker = self._start()
            self._busy.add(worker)
            return worker

    def _start(self) -> _Worker:
        try:
            worker = _Worker(self._memory_bytes)
        except OSError as error:
            raise GraderError(f"could not start a worker process: {error}") from error
        self._counts["started"] += 1
        return worker

    def _living_idle(self) -> _Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            worker.close()
        return None

    def _give_back(self, worker: _Worker) -> None:
        with self._turn:
            self._busy.discard(worker)
            if worker.alive and not self._closed:
                self._idle.append(worker)
            else:
                worker.close()

    def _count(self, name: str) -> None:
        with self._turn:
            self._counts[name] += 1


class _CpuSpent(Exception):
    """The kernel ended the worker at the call's CPU limit."""


class _Worker:
    """One process, and the socket to it."""

    def __init__(self, memory_bytes: int) -> None:
        self._socket, theirs = Pipe()
        self._killed = False
        command = [sys.executable, "-P", str(CHILD), str(theirs.fileno())]
        with theirs:  # a session of its own: Ctrl-C is for the parent, and the whole group can be killed
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | ONE_THREAD,
                start_new_session=True,
            )
        self._socket.send_bytes(pickle.dumps((sys.path, memory_bytes)))

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, call: bytes, wall_s: float) -> bytes:
        """The pickled outcome; raises _CpuSpent or GraderError, and then the process is dead."""
        try:
            self._socket.send_bytes(call)
            if self._socket.poll(wall_s):
                return self._socket.recv_bytes(MAX_BYTES)
        except (EOFError, OSError) as error:
            if not self._socket.readable:  # it is no longer, once it has refused to read so much
                raise self._told_too_much() from error
            code = self.kill()
            if code == -signal.SIGPROF:
                raise _CpuSpent from None
            raise GraderError(f"the grader's worker was lost (exit status {code})") from error
        self.kill()
        raise GraderError(f"the grader gave no answer in {wall_s:g} s, and did not use its CPU limit either")

    def _told_too_much(self) -> GraderError:
        self.kill()
        return GraderError(
            f"the grader's worker was killed: it spoke of an outcome of more than {MAX_BYTES:,} bytes, which it may "
            "not send. Look for what in the grader writes to file descriptors that it did not open"
        )

    def kill(self) -> int:
        """Ends the process and all it started, which may outlive it; its exit status, which a process that had
        already ended keeps."""
        if not self._killed:  # once the group is gone, its number may be another's
            self._killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def close(self) -> None:
        self.kill()
        self._socket.close()


# Graders are single-threaded (CPU time is then what they took), and what they find must not depend
# on the order of a set of strings.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def _whole(target: str | Target) -> Target:
    if not isinstance(target, str):
        return target
    module, _, attr = target.partition(":")
    if not attr:
        raise ValueError(f"target {target!r} must look like 'module:attr'")
    return module, attr, None


_shared: dict[int, WorkerPool] = {}  # by process id: a forked child must not talk to its parent's workers
_shared_lock = threading.Lock()


def shared_workers() -> WorkerPool:
    """The pool of this process, for whoever has no pool of their own."""
    with _shared_lock:
        return _shared.setdefault(os.getpid(), WorkerPool())


def close_shared_workers() -> None:
    """Kills the shared pool's workers; a later call starts new ones. Also done at exit."""
    with _shared_lock:
        pool = _shared.pop(os.getpid(), None)
    if pool:
        pool.close()


atexit.register(close_shared_workers)


def grade_in_worker(target: str, *args: Any, cpu_s: float = 5.0, wall_s: float = 60.0, **kwargs: Any) -> Any:
    """`WorkerPool.call` on the process-wide pool: for graders inside an environment's step.

    Blocks; safe from several threads.

    Args:
        target: "module:attr" of a plain function.
        cpu_s, wall_s: limits of one try, in seconds; see `WorkerPool.call`.

    Raises:
        GraderTimeout, GraderError, Exception: as `WorkerPool.call`.
    """
    return shared_workers().call(target, *args, cpu_s=cpu_s, wall_s=wall_s, **kwargs)


async def grade_in_worker_async(
    target: str, *args: Any, cpu_s: float = 5.0, wall_s: float = 60.0, **kwargs: Any
) -> Any:
    """`grade_in_worker`, for a coroutine."""
    return await shared_workers().call_async(target, *args, cpu_s=cpu_s, wall_s=wall_s, **kwargs)
