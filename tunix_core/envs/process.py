"""An environment in a process of its own, which is killed with its whole group; see `wire` for what is said."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tunix_core import __version__
from tunix_core.envs.base import broken
from tunix_core.envs.waiting import Limit, Limits, Tally, bounded, wait_for_thread
from tunix_core.envs.wire import (
    FORM,
    check_form,
    message_to_json,
    opening_from_json,
    read_frame,
    result_from_json,
    to_frame,
)
from tunix_core.errors import EnvError, boundary
from tunix_core.tools.threads import run_aside
from tunix_core.types import Message, Opening, StepResult

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]) or sys.path; "
    "from tunix_core.envs.worker import main; main(int(sys.argv[1]))"
)
_POLL_S = 0.5  # how often a silent worker is looked after
_EXIT_S = 5.0  # to be gone after SIGKILL
_CORE = f"tunix-core=={__version__}, or the same checkout"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a worker needs to build the environment of a task; survives JSON."""

    module: str
    attr: str
    file: str | None
    task: str
    max_steps: int | None
    options: Mapping[str, Any]


class Worker:
    """One worker process, and the stream to it.

    Args:
        python: the interpreter of a virtual environment, which then decides what can be imported; "" for this
            process's own, with what can be imported here.

    Attributes:
        pending: a question has no answer yet, or none that could be made out.
        failed: an answer was an error.
        ready: it is there, and has imported the environment.
    """

    def __init__(self, python: str = "") -> None:
        self._socket, theirs = socket.socketpair()
        program, path = ([python, "-I"], []) if python else ([sys.executable, "-P"], sys.path)
        with theirs:
            command = [*program, "-c", _START, str(theirs.fileno()), json.dumps(path)]
            self.process = subprocess.Popen(  # takes a few ms; the imports behind it are awaited
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
            )
        self._program, self._killed = program[0], False
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.pending = self.failed = self.ready = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    async def load(self, **fields: Any) -> None:
        """Has the process be there, and import an environment. Raises EnvError as `open`."""
        await self._first("load", fields)
        self.ready = True

    async def open(self, **fields: Any) -> None:
        """Has an environment built. Raises EnvError as `ask`; of kind "env_contract" for another tunix-core there."""
        await self._first("open", fields)

    async def _first(self, op: str, fields: Mapping[str, Any]) -> None:
        answer = await self._answer({"op": op, "form": FORM, **fields})
        check_form(answer, self._program, f"Install there what runs here: {self._program} -m pip install {_CORE}")
        self._value(answer)

    async def ask(self, op: str, **fields: Any) -> Any:
        """The answer to one question.

        Raises:
            EnvError: what the environment raised; or kind "env_died"; or kind "env_contract", for a question that no
                frame can hold, or an answer that is none, whose process is killed.
        """
        return self._value(await self._answer({"op": op, **fields}))

    async def _answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        frame = to_frame(question)
        self.pending = True
        try:
            return await self._exchange(frame)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise EnvError(await self._obituary(), kind="env_died") from error
        except EnvError:
            await self.kill()
            raise

    def _value(self, answer: Mapping[str, Any]) -> Any:
        self.pending, self.failed = False, self.failed or "value" not in answer
        if "value" in answer:
            return answer["value"]
        if "error" not in answer:
            raise broken(f'the environment\'s process gave no answer: {answer!r:.200}; expected "value" or "error"')
        failure = answer["error"]
        with boundary(failure["boundary"], EnvError):
            raise EnvError(failure["message"], kind=failure["kind"], retry=failure["retry"])

    async def _exchange(self, frame: bytes) -> Mapping[str, Any]:
        """Sends a frame and reads one. A forked child may hold the stream open after the worker's death: so look."""
        if self._stream is None:
            self._stream = await asyncio.open_connection(sock=self._socket)
        reader, writer = self._stream
        writer.write(frame)
        reading = asyncio.ensure_future(read_frame(reader))
        try:
            while not reading.done():
                dead = not self.alive
                await asyncio.wait({reading}, timeout=_POLL_S)
                if dead and not reading.done():
                    raise ConnectionError("the worker is gone")
            return reading.result()
        finally:
            reading.cancel()

    async def _obituary(self) -> str:
        await self.kill()
        code = self.process.returncode
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit status {code}"
        return f"the environment's process ended ({how})"

    async def kill(self) -> None:
        """Kills the process and its group, which may outlive it, and waits until it is gone."""
        if not self._killed:  # once the group is gone, its number may be another's
            self._killed = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        await self.end()

    async def end(self) -> None:
        """Closes the stream, at which a worker runs its exit handlers and goes."""
        self._socket.close() if self._stream is None else self._stream[1].close()
        await wait_for_thread(run_aside(self.process.wait), _EXIT_S)


class Workers:
    """Worker processes of one interpreter, reused after a clean episode."""

    def __init__(self, python: str = "") -> None:
        self._python = python
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()

    async def lease(self) -> Worker:
        """An idle worker that is alive, or a new one. What is left of those that died meanwhile is killed."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            await self._drop(worker)
        worker = Worker(self._python)
        self._all.add(worker)
        return worker

    async def give_back(self, worker: Worker) -> None:
        """Takes a worker back for the next episode, or kills it unless all went well."""
        if not (worker.pending or worker.failed):
            self._idle.append(worker)
            return
        await self._drop(worker)

    async def _drop(self, worker: Worker) -> None:
        await worker.kill()
        self._all.discard(worker)

    async def aclose(self) -> None:
        """Ends the idle workers, and kills what is not gone by then, with what the ended ones have left behind."""
        await asyncio.gather(*(worker.end() for worker in self._idle))
        await asyncio.gather(*(worker.kill() for worker in self._all))
        self._idle.clear()
        self._all.clear()

    def __len__(self) -> int:
        return len(self._all)


class ProcessCell:
    """Holds one environment in a worker process."""

    def __init__(self, recipe: Recipe, workers: Workers, limits: Limits, tally: Tally) -> None:
        self._recipe, self._workers, self._limits, self._tally = recipe, workers, limits, tally
        self._worker: Worker | None = None

    def close_at_once(self) -> bool:
        return self._worker is None

    async def open(self) -> None:
        self._worker = worker = await self._workers.lease()
        fields = {name: getattr(self._recipe, name) for name in Recipe.__slots__}
        if not worker.ready:  # which takes a time of its own, however short the environment's is
            await self._bounded(worker.load(**fields), "open", self._limits.start)
        await self._bounded(worker.open(**fields), "open", self._limits.reset)

    async def reset(self, seed: int) -> Opening:
        answer = await self._ask(self._worker, "reset", self._limits.reset, seed=seed)
        return opening_from_json(answer)

    async def step(self, action: Message) -> StepResult:
        action_json = message_to_json(action)
        answer = await self._ask(self._worker, "step", self._limits.step, action=action_json)
        return result_from_json(answer)

    async def close(self) -> None:
        """Closes the environment, unless a call hangs there: then the worker is killed as it is."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            if not worker.pending:
                await self._ask(worker, "close", self._limits.close)
        finally:
            await self._workers.give_back(worker)

    async def _ask(self, worker: Worker | None, op: str, limit: Limit, **fields: Any) -> Any:
        if worker is None:
            raise EnvError("the environment is not open")
        return await self._bounded(worker.ask(op, **fields), op, limit)

    async def _bounded(self, asking: Coroutine[Any, Any, Any], op: str, limit: Limit) -> Any:
        return await bounded(asyncio.ensure_future(asking), limit, f"env.{op}", self._tally)
