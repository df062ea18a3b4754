"""The public check, against environments that keep and that break each promise."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunix_core.envs import BaseTaskEnv, ToolEnvironment
from tunix_core.specs import Timeouts
from tunix_core.testing.echo import ECHO, BlockingEchoEnv, EchoEnv, make_tasks
from tunix_core.testing.envs import check_env
from tunix_core.types import Message, StepResult, Task

TASKS = [Task(f"t{i}", {"text": str(i)}) for i in range(3)]


class Good(BaseTaskEnv):
    """Draws a number at the beginning and at each step."""

    def _initial_observation(self) -> Any:
        return f"{self.task['text']} {self.rng.integers(1000)}"

    def _step_impl(self, action: str) -> Any:
        return StepResult(str(self.rng.integers(1000)), self.reward(), self.step_count == 2, info=self.info())

    def reward(self) -> Any:
        return 0.5

    def info(self) -> Any:
        return {"n": 1}


class SharedRng(Good):
    def start(self, seed: int | None) -> None:
        super().start(seed)
        self.rng = _SHARED


_SHARED = np.random.default_rng(0)


class Unseeded(Good):
    def reset(self, seed: int | None = None) -> Any:
        return super().reset(None)


class Fresh(Good):
    def start(self, seed: int | None) -> None:
        super().start(seed)
        self.rng = np.random.default_rng()


class GlobalRandom(Good):
    def _initial_observation(self) -> Any:
        random.random()
        return "x"


class GlobalNumpy(Good):
    def _initial_observation(self) -> Any:
        np.random.seed(self.seed)
        return "x"


class Remembering(Good):
    """Does not begin anew at `reset`."""

    resets = 0

    def _initial_observation(self) -> Any:
        self.resets += 1
        return f"reset {self.resets}"


class NoReward(Good):
    def reward(self) -> Any:
        return None


class BadInfo(Good):
    def info(self) -> Any:
        return {"n": {1, 2}}


class NumberSeen(Good):
    def _initial_observation(self) -> Any:
        return 3


class FailingClose(Good):
    def _close(self) -> None:
        raise RuntimeError("nothing to close")


class Endless(Good):
    def step(self, action: Any) -> Any:
        return self._step_impl(action) if self.step_count else StepResult("on")


def add(a: int) -> int:
    return a + 1


class Tools(ToolEnvironment):
    def __init__(self, task: Any, **kwargs: Any) -> None:
        super().__init__(task, tools=[add], **kwargs)

    def _initial_observation(self) -> Any:
        return "use add"


@pytest.mark.parametrize("env", [Good, Tools, EchoEnv, BlockingEchoEnv])
def test_good_environments_pass(env: Any) -> None:
    check_env(env, TASKS)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        (SharedRng, "another beginning|another episode"),
        (Fresh, "another beginning|another episode"),
        (Unseeded, "did not keep the seed"),
        (GlobalRandom, "global random generator"),
        (GlobalNumpy, "global random generator"),
        (Remembering, "another beginning"),
        (NoReward, "finite number"),
        (BadInfo, "does not survive JSON"),
        (NumberSeen, "an observation must be"),
        (FailingClose, "RuntimeError: nothing to close"),
        (Endless, "not over after max_steps = 16"),
    ],
)
def test_a_broken_promise_is_named(env: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=why) as caught:
        check_env(env, TASKS)
    assert env.__name__ in str(caught.value)


def test_the_echo_suite_passes_in_all_its_forms() -> None:
    check_env(ECHO)
    check_env(ECHO, n=2, options={"turns": 4, "length": 3})

    def repeat(opening: Any, rng: Any) -> Message:
        return Message.of("assistant", opening.messages[0].text)

    check_env(ECHO, make_tasks("eval", 3), options={"turns": 3}, player=repeat)
    with pytest.raises(AssertionError, match=r"its score 1\.0 is not in its range"):
        check_env(replace(ECHO, score_range=(0.0, 0.5)), player=repeat)


class Hangs(Good):
    """Waits in a call until it is told to go on: there or, as `async` code that blocks, on the event loop."""

    where, gate = "step", threading.Event()

    def __init__(self, task: Any = None, **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        self.wait("reset_constructor")

    def _initial_observation(self) -> Any:
        self.wait("reset")
        return "x"

    async def _step_impl(self, action: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.wait("step")
        return StepResult("on", 0.5, self.step_count == 2)

    def _close(self) -> None:
        self.wait("close")

    def wait(self, where: str) -> None:
        if where == self.where:
            self.gate.wait(30)


@pytest.mark.parametrize("where", ["reset_constructor", "reset", "step", "close"])
def test_a_call_that_takes_longer_than_it_may_is_named(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(Hangs, "where", where)
    monkeypatch.setattr(Hangs, "gate", gate)
    option = f"{where.partition('_')[0]}_s"
    what = "its constructor" if "constructor" in where else where
    spec = replace(ECHO, target=f"{__name__}:Hangs", options={}, timeouts=Timeouts(**{option: 0.02}))
    with pytest.raises(AssertionError, match=rf"{what} took longer than 0\.02 s \(timeouts\.{option}\)"):
        check_env(spec, TASKS)
    gate.set()


class Blocks(Good):
    """Blocks the event loop, where it should await."""

    async def _initial_observation(self) -> Any:
        return "x"

    async def _step_impl(self, action: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        Hangs.gate.wait(30)


class Awaits(Blocks):
    async def _step_impl(self, action: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.Event().wait()


@pytest.mark.parametrize(("cls", "blocks"), [(Blocks, True), (Awaits, False), (Hangs, False)])
def test_an_async_call_that_blocks_is_told_from_one_that_waits(
    cls: type, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(Hangs, "gate", gate)
    spec = replace(ECHO, target=f"{__name__}:{cls.__name__}", options={}, timeouts=Timeouts(step_s=0.02))
    with pytest.raises(AssertionError, match="step took longer than") as caught:
        check_env(spec, TASKS)
    gate.set()
    assert ("held the event loop up" in str(caught.value)) == blocks


class Exits(Good):
    def _step_impl(self, action: str) -> Any:
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("cls", "why"),
    [(Exits, r"task 't0', step: SystemExit: 0"), (FailingClose, r"task 't0', close: RuntimeError: nothing to close")],
)
def test_what_a_call_raises_is_told_with_the_call_and_the_line(cls: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=rf"{cls.__name__}, {why} \(test_check_env\.py:\d+\)"):
        check_env(cls, TASKS)


def test_what_an_environment_leaves_behind_keeps_nobody_waiting() -> None:
    class Leaves(Good):
        async def _step_impl(self, action: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            self.left = asyncio.ensure_future(stubborn())
            return StepResult("on", 0.5, self.step_count == 2)

    gone = threading.Event()

    async def stubborn() -> None:
        while not gone.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    check_env(Leaves, TASKS)
    gone.set()


def test_overlapping_splits_and_shared_ids_are_found() -> None:
    with pytest.raises(AssertionError, match="train and eval share 4 tasks"):
        check_env(replace(ECHO, tasks=f"{__name__}:overlapping"))
    with pytest.raises(AssertionError, match="two tasks of train share an id"):
        check_env(replace(ECHO, tasks=f"{__name__}:same_ids"))


def overlapping(split: Any, seed: int) -> Any:
    return _Listed([Task(f"{split}{i}", {"text": str(i)}, split=split) for i in range(4)])


def same_ids(split: Any, seed: int) -> Any:
    return _Listed([Task("one", {"text": f"{split}{i}"}, split=split) for i in range(4)])


class _Listed:
    def __init__(self, tasks: list[Task]) -> None:
        self.get, self.length = tasks.__getitem__, len(tasks)

    def __len__(self) -> int:
        return self.length


def test_tasks_that_do_not_survive_json_are_found() -> None:
    with pytest.raises(AssertionError, match="does not survive JSON"):
        check_env(Good, [Task("t", {"text": (1, 2)})])


def test_an_episode_that_fails_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="RuntimeError: fails at step 1"):
        check_env(ECHO, options={"fail_at": 1})
