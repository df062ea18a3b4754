"""Blocking calls in daemon threads, which may be left behind when a call never returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from tunix_core.errors import words


class Lane:
    """One daemon thread that runs the calls given to it, one after the other.

    A call that hangs holds this lane alone; what was submitted behind it runs when it returns.
    """

    def __init__(self, name: str) -> None:
        self._inbox: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Queues `call`; the future has its result."""
        future: Future[Any] = Future()
        self._inbox.put((future, call))
        return future

    def end(self) -> None:
        """Ends the thread after what was submitted."""
        self._inbox.put(None)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None:
            settle(*item)
            item = None  # an idle lane must not keep an environment alive


def run_aside(call: Callable[[], Any], name: str = "tunix-call") -> Future[Any]:
    """Runs one call in a daemon thread of its own."""
    future: Future[Any] = Future()
    threading.Thread(target=settle, args=(future, call), name=name, daemon=True).start()
    return future


def settle(future: Future[Any], call: Callable[[], Any]) -> None:
    """Runs `call` and puts what it gives, or raises, into `future`, unless that was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - a thread's boundary: what it raises belongs to the caller
        future.set_exception(plain(error))
    finally:
        del future, call  # what was raised holds this frame


def plain(error: BaseException) -> Exception:
    """What no Exception would end the caller's event loop, and StopIteration can't enter a future: a RuntimeError."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(words(error))
