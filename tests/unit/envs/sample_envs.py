"""Environments that misbehave on request, for the tests of the wall. Imports no pytest: workers load it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tunix_core.envs import BaseTaskEnv, ToolEnvironment
from tunix_core.envs import EnvStepResult as StepResult
from tunix_core.errors import GraderError
from tunix_core.types import Message, TextPart, ToolCall

USER: ContextVar[str] = ContextVar("user", default="nobody")
RELEASE = threading.Event()  # what a call that "hangs" waits for, where the test wants it to return


class Probe(BaseTaskEnv):
    """Does `do` at `where` ("init", "reset", "step", "close"), and writes each close to the file `log`."""

    def __init__(self, task: Any, *, do: str = "", where: str = "step", log: str = "", **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        self.do, self.where, self.log = do, where, log
        self._misbehave("init")

    def _initial_observation(self) -> Any:
        return self._misbehave("reset") or f"draw {self.rng.integers(1_000_000)} gold {self.full_task.gold}"

    def _step_impl(self, action: str) -> Any:
        misdeed = self._misbehave("step")
        info = {"pid": os.getpid(), "thread": threading.current_thread().name, "action": action}
        return misdeed or StepResult(f"heard {action}", 0.5, info=info)

    def _close(self) -> Any:
        if self.log:
            with open(self.log, "a") as file:
                print("close", threading.current_thread().name, file=file)
        self._misbehave("close")

    def _misbehave(self, where: str) -> Any:
        return MISDEEDS[self.do]() if self.do and where == self.where else None


class AsyncProbe(Probe):
    """The same on the event loop."""

    async def _initial_observation(self) -> Any:
        await self._hang("reset")
        return Probe._initial_observation(self)

    async def _step_impl(self, action: str) -> Any:
        await self._hang("step")
        return Probe._step_impl(self, action)

    async def _close(self) -> Any:
        Probe._close(self)
        await self._hang("close")

    async def _hang(self, where: str) -> None:
        if self.where == where and self.do == "forever":
            await asyncio.Event().wait()
        if self.where == where and self.do == "stubborn":
            await self._ignore_cancellation()
        if self.where == where and self.do == "cancel":
            raise asyncio.CancelledError

    def _misbehave(self, where: str) -> Any:
        return None if self.do in ("forever", "stubborn", "cancel") else super()._misbehave(where)

    async def _ignore_cancellation(self) -> None:
        while not RELEASE.is_set():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


class Session(BaseTaskEnv):
    """Opens in `reset` what only the same task may close in `close`, as clients of servers do."""

    async def _initial_observation(self) -> str:
        self.group = await asyncio.TaskGroup().__aenter__()
        self.serving = self.group.create_task(asyncio.Event().wait())
        self.task_of_reset = asyncio.current_task()
        return f"{USER.get()} {USER.set('ada').var.name}"

    async def _step_impl(self, action: str) -> Any:
        assert asyncio.current_task() is self.task_of_reset
        await asyncio.sleep(0)
        return StepResult(USER.get(), 1.0, self.step_count == 2)

    async def _close(self) -> None:
        assert asyncio.current_task() is self.task_of_reset
        self.serving.cancel()
        await self.group.__aexit__(None, None, None)


class MixedProbe(Probe):
    """Blocks in `step`, and closes with a coroutine."""

    async def _close(self) -> Any:
        await asyncio.sleep(0)
        Probe._close(self)


class Forker(BaseTaskEnv):
    """Leaves a child process behind, whose id is its info, and then hangs."""

    def _initial_observation(self) -> Any:
        return "go"

    def _step_impl(self, action: str) -> Any:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        Path(self.task["pid_file"]).write_text(str(child.pid))
        time.sleep(3600)


class Parent(BaseTaskEnv):
    """Starts a child process that would stay for an hour, and says in its info both their ids."""

    def _initial_observation(self) -> Any:
        return "go"

    def _step_impl(self, action: str) -> Any:
        self.child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
        return StepResult("started", info={"pid": os.getpid(), "child": self.child.pid})


class Babbler(BaseTaskEnv):
    """Writes `said`, given in hex, to the stream its process answers on, and then answers."""

    def _initial_observation(self) -> Any:
        return "go"

    def _step_impl(self, action: str) -> Any:
        os.write(int(sys.argv[1]), bytes.fromhex(self.task["said"]))
        return StepResult("said")


class Dirty(BaseTaskEnv):
    """Changes its payload."""

    def _initial_observation(self) -> Any:
        self.task["seen"] = self.task.get("seen", 0) + 1
        return f"seen {self.task['seen']}"


class Adder(ToolEnvironment):
    def __init__(self, task: Any, **kwargs: Any) -> None:
        super().__init__(task, tools=[add, ponder], **kwargs)

    async def _grade(self, answer: str) -> float:
        return float(answer == self.task["answer"])


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


async def ponder() -> str:
    """Thinks."""
    await asyncio.sleep(0)
    return "hm"


class NotAnEnv:
    def __init__(self, task: Any) -> None: ...


def _raise(error: BaseException) -> Any:
    raise error


def _no_value() -> Any:
    return next(iter(()))


def _deep() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


def _call(argument: Any) -> Message:
    return Message("assistant", tool_calls=(ToolCall("f", {"x": argument}),))


class Panic(BaseException):
    """As PyO3 raises for a panic in Rust: no Exception."""


MISDEEDS: dict[str, Any] = {
    "raise": lambda: _raise(ValueError("as asked")),
    "timeout": lambda: _raise(TimeoutError("a socket's")),
    "grader": lambda: _raise(GraderError("the judge is down")),
    "exit": lambda: _raise(SystemExit(3)),
    "panic": lambda: _raise(Panic("in Rust")),
    "stop": _no_value,
    "wait": lambda: RELEASE.wait(60) and None,
    "forever": lambda: time.sleep(3600),
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leave": lambda: os._exit(7),
    "nan": lambda: StepResult("x", math.nan),
    "text": lambda: StepResult("x", "1.0"),  # type: ignore[arg-type]
    "none": lambda: (None, None),
    "object": object,
    "empty": lambda: {"board": [1, 2]},
    "bytes": lambda: StepResult(Message("user", (TextPart(b"raw"),))),  # type: ignore[arg-type]
    "deep": lambda: StepResult(_call(_deep())),
    "set": lambda: StepResult(_call({1, 2})),
    "info": lambda: StepResult("x", 1.0, info=[1]),  # type: ignore[arg-type]
}
