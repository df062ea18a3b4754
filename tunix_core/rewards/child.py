"""What runs inside a worker process. Standard library only, so that it starts in an instant.

It is executed by its path, with the number of an open socket: it takes pickled calls and gives
pickled outcomes, each of at most `MAX_BYTES`, until the socket closes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import queue
import resource
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

MAX_BYTES = 64 << 20
_MAX_TEXT = 10_000  # characters of an error that can't be given as it is


def main() -> None:
    calls = Connection(int(sys.argv[1]))
    path, memory_bytes = pickle.loads(calls.recv_bytes(MAX_BYTES))
    sys.path[:] = path
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the limit can't be lowered below what is mapped
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel ends this process, whoever holds the GIL
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(calls, received), daemon=True).start()
    while True:
        calls.send_bytes(_answer(received.get()))


def _receive(calls: Connection, received: queue.SimpleQueue[bytes]) -> None:
    """Hands calls on. A closed socket means that the parent is gone: so is this process, busy or not.

    It goes as well at a call said to be larger than the parent may send, since what follows can't be made out.
    """
    try:
        while True:
            received.put(calls.recv_bytes(MAX_BYTES))
    except (EOFError, OSError):
        os._exit(0)


def _answer(call: bytes) -> bytes:
    file = None
    try:
        target, args, kwargs, cpu_s = pickle.loads(call)
        *_, file = target
        function = _load(*target)  # importing is not the call's own work
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            value = function(*args, **kwargs)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return pickled((True, value), "a call's value")
    except BaseException as error:  # noqa: BLE001 - whatever the call does, the answer says so
        return _raised(error, file)


def _raised(error: BaseException, file: str | None) -> bytes:
    error.add_note("In the worker:\n" + "".join(traceback.format_exception(error)))
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    try:
        if lines:
            error.in_worker = f" ({os.path.basename(str(file))}:{lines[-1]})"  # type: ignore[attr-defined] - as a note
        outcome = pickled((False, error), "a call's exception")
        pickle.loads(outcome)
        return outcome
    except Exception:  # noqa: BLE001 - an exception may pickle badly in any way it likes
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}"[:_MAX_TEXT])))


def pickled(value: Any, what: str) -> bytes:
    """`value`, pickled. Raises ValueError, naming `what` it is, when it takes more than `MAX_BYTES`."""
    found = pickle.dumps(value)
    if len(found) > MAX_BYTES:
        raise ValueError(
            f"{what} may take {MAX_BYTES:,} bytes, pickled, on its way to or from a worker process, not "
            f"{len(found):,}. Give less of it, or the name of a file that holds it"
        )
    return found


def _load(module: str, name: str, file: str | None) -> Any:
    found: Any = _module(module, file)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _module(name: str, file: str | None) -> Any:
    """Imports by name, and where that leads elsewhere than to `file`, loads the file under the name."""
    try:
        found = importlib.import_module(name)
        if file in (None, getattr(found, "__file__", None)):
            return found
    except ModuleNotFoundError as error:
        if file is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    assert file is not None
    return _module_from_file(name, file)


def _module_from_file(name: str, file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


if __name__ == "__main__":
    main()
