"""The process an isolated environment runs in: answers frames until the stream ends; see `wire`."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import importlib.util
import inspect
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from tunix_core import __version__
from tunix_core.envs.base import BaseTaskEnv
from tunix_core.envs.caller import Caller
from tunix_core.envs.drive import advance, begin, build
from tunix_core.envs.waiting import Limit, Tally
from tunix_core.envs.wire import (
    FORM,
    check_form,
    failure_to_json,
    message_from_json,
    opening_to_json,
    receive_frame,
    result_to_json,
    to_frame,
)
from tunix_core.errors import EnvError, EpisodeError, boundary, failure_of
from tunix_core.types import Task

_EXIT_S = 1.0  # for exit handlers, once the stream has ended
_REMEDY = f"Install one version of tunix-core for both; the environment has {__version__}"


def main(fd: int) -> None:
    """Serves one stream, then ends this process and every process it started."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    atexit.register(os.killpg, 0, signal.SIGKILL)  # registered first, so it runs last
    inbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(sock, inbox), daemon=True).start()
    with asyncio.Runner() as runner:
        server = Server(runner)
        while (request := inbox.get()) is not None:
            sock.sendall(server.answer(request))


def _listen(sock: socket.socket, inbox: SimpleQueue[dict[str, Any] | None]) -> None:
    """Hands requests on. When the other side is gone, or what it sends can't be made out, this process goes too, even
    in a hanging call."""
    try:
        while (frame := receive_frame(sock)) is not None:
            inbox.put(frame)
    except EnvError as error:
        print(error, file=sys.stderr, flush=True)  # before `main` hears of the end, which ends this process
    finally:
        inbox.put(None)
        time.sleep(_EXIT_S)
        os.killpg(0, signal.SIGKILL)


class Server:
    """Answers the requests of one stream; holds one environment at a time."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._env: BaseTaskEnv | None = None
        self._caller: Caller | None = None  # of its calls that are `async`
        self._limit = Limit(math.inf, "")  # the trainer's process bounds them

    def answer(self, request: Mapping[str, Any]) -> bytes:
        """The frame of a value or an error: whatever the environment raises, and what of it no frame can hold."""
        op = request["op"]
        form = {"form": FORM} if op in ("load", "open") else {}
        try:
            with boundary(_boundary(op), EnvError):
                return to_frame({**form, "value": self._do(op, request)})
        except EpisodeError as error:
            failure = failure_of(error)
        except BaseException as error:  # noqa: BLE001 - SystemExit in an environment must not end the process
            failure = replace(failure_of(EnvError(f"{type(error).__name__}: {error}")), boundary=_boundary(op))
        return to_frame({**form, "error": failure_to_json(failure)})

    def _do(self, op: str, request: Mapping[str, Any]) -> Any:
        if op in ("load", "open"):
            check_form(request, "the trainer", _REMEDY)
            cls = load_class(request["module"], request["attr"], request["file"])
        if op == "load":
            return None
        if op == "open":
            self._forget_calls()
            self._env = build(cls, Task.from_json(request["task"]), request["max_steps"], request["options"])
            return None
        env, self._env = self._env, None if op == "close" else self._env
        if env is None:
            return None
        if op == "reset":
            return opening_to_json(self._wait(begin(env, request["seed"]), op))
        if op == "step":
            return result_to_json(self._wait(advance(env, message_from_json(request["action"])), op))
        self._wait(env.close(), op)
        return None

    def _wait(self, value: Any, op: str) -> Any:
        return self._runner.run(self._awaited(value, op)) if inspect.isawaitable(value) else value

    async def _awaited(self, value: Any, op: str) -> Any:
        """In one task for all calls of an environment, as in the trainer's process."""
        self._caller = self._caller or Caller(Tally())
        return await self._caller.call(lambda: value, self._limit, f"env.{op}")

    def _forget_calls(self) -> None:
        if self._caller is not None:
            self._caller.end()
            self._caller = None


def _boundary(op: str) -> str:
    return "env.open" if op == "load" else f"env.{op}"


def load_class(module: str, attr: str, file: str | None) -> Any:
    """What `attr` names in `module`: by import where that finds `file` (or file is None), else from `file`."""
    found: Any = (
        importlib.import_module(module) if file is None or _origin(module) == file else _from_file(module, file)
    )
    for name in attr.split("."):
        found = getattr(found, name)
    return found


def _origin(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):
        return None
    return spec.origin if spec else None


def _from_file(module: str, file: str) -> ModuleType:
    if module in sys.modules and getattr(sys.modules[module], "__file__", None) == file:
        return sys.modules[module]
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {module} from {file}")
    sys.modules[module] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
