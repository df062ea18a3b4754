"""`check_env`: does an environment keep the promises every environment makes?"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from threading import Event
from time import monotonic
from typing import Any

import numpy as np

from tunix_core.contracts import TaskSource
from tunix_core.envs import BaseTaskEnv, to_messages
from tunix_core.envs.base import as_step_result
from tunix_core.envs.drive import accepted, begin, build
from tunix_core.envs.local import is_async
from tunix_core.errors import raised_at, words
from tunix_core.profiling.holding import ADVICE
from tunix_core.specs import EnvSpec, Timeouts, load_target
from tunix_core.tools.threads import run_aside
from tunix_core.types import Message, Opening, Split, StepResult, Task, ToolCall

Player = Callable[[Opening, np.random.Generator], Message]
LOOK_S = 0.05  # how often it is looked at whether a call's time is over


def check_env(
    env: EnvSpec | type[BaseTaskEnv],
    tasks: TaskSource | Sequence[Task] | None = None,
    *,
    n: int = 5,
    options: Mapping[str, Any] | None = None,
    player: Player | None = None,
    max_steps: int | None = None,
    split: Split = "train",
    seed: int = 0,
) -> None:
    """Plays `n` tasks several times over and checks what every environment promises.

    The same task and seed give the same episode, in another object and next to others; a second
    `reset` begins anew; a second `close` does nothing; results have their types and survive JSON; no
    global random generator is touched; an episode ends within `max_steps`, and its score within the
    spec's range; each call ends within the spec's timeouts; tasks survive JSON, and train and eval do
    not overlap. The calls are made in a thread, which is left behind when one hangs.

    Args:
        env: a spec, or a class.
        tasks: what to play; default: the spec's tasks of that split and seed.
        n: how many.
        options: over the spec's defaults; for a family, with its `name`.
        player: (opening, rng) -> what the policy says; default: short random texts, and calls of the
            tools on offer with random arguments.
        max_steps: default: the spec's `max_turns`, or 16 for a class.

    Raises:
        AssertionError: names the environment, the task and the promise.
    """
    check, played = _Check(env, options or {}, player or random_player, max_steps), Future[None]()
    # Not the thread's own end: what an environment leaves behind may keep the loop from closing.
    run_aside(lambda: asyncio.run(check.settle(played, tasks, n, split, seed)), "tunix-check")
    while not wait([played], LOOK_S).done:
        check.is_in_time()
    played.result()


def random_player(opening: Opening, rng: np.random.Generator) -> Message:
    """A policy that knows nothing: a word, a number, or a call."""
    if opening.tools and rng.random() < 0.8:
        schema = opening.tools[rng.integers(len(opening.tools))]
        names = schema["parameters"].get("properties", {})
        return Message(
            "assistant", tool_calls=(ToolCall(schema["name"], {name: _word(rng) for name in names}, "call-0"),)
        )
    return Message.of("assistant", _word(rng))


def _word(rng: np.random.Generator) -> str:
    return str(rng.choice(["", "0", "1", "-3", "up", "left", "yes", "a longer answer", "\\boxed{7}"]))


class _Check:
    def __init__(self, env: Any, options: Mapping[str, Any], player: Player, max_steps: int | None) -> None:
        self.spec = env if isinstance(env, EnvSpec) else None
        self.cls = load_target(env.target) if isinstance(env, EnvSpec) else env
        self.name = self.spec.id if self.spec else self.cls.__name__
        self.options = {**({k: o.default for k, o in self.spec.options.items()} if self.spec else {}), **options}
        self.player = player
        self.max_steps = max_steps or (self.spec.max_turns if self.spec else 16)
        self.timeouts = self.spec.timeouts if self.spec else Timeouts()
        self.doing: tuple[str, float] | None = None  # what to say when it isn't over, and when that is to be said
        self.raised_in = ""  # the first call that did
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_async = issubclass(self.cls, BaseTaskEnv) and is_async(self.cls)

    def is_in_time(self) -> None:
        """Raises AssertionError when a call has taken longer than it may."""
        doing = self.doing
        if doing is not None and monotonic() >= doing[1]:
            raise AssertionError(doing[0] + (f"; {ADVICE}" if self.holds_the_loop() else ""))

    def holds_the_loop(self) -> bool:
        """Whether an `async` call blocks, which a run can't await: nothing else moves meanwhile."""
        if not self.is_async or self.loop is None:
            return False
        moved = Event()
        self.loop.call_soon_threadsafe(moved.set)
        return not moved.wait(LOOK_S)

    @contextmanager
    def within(self, limit: str, what: str, where: str) -> Iterator[None]:
        """What happens inside may take as long as that limit says."""
        seconds = getattr(self.timeouts, limit)
        self.doing = (f"{where}: {what} took longer than {seconds:g} s (timeouts.{limit})", monotonic() + seconds)
        try:
            yield
        except BaseException:
            self.raised_in = self.raised_in or what  # closing what raised may raise as well
            raise
        finally:
            self.doing = None

    async def settle(self, played: Future[None], tasks: Any, n: int, split: Split, seed: int) -> None:
        """Checks it, and tells so."""
        self.loop = asyncio.get_running_loop()
        try:
            await self.run(tasks, n, split, seed)
            played.set_result(None)
        except BaseException as error:  # noqa: BLE001 - a thread's boundary: what is raised belongs to the caller
            named = isinstance(error, AssertionError)
            played.set_exception(
                error if named else AssertionError(f"{self.name}: {words(error)}{raised_at(error.__traceback__)}")
            )

    async def run(self, tasks: Any, n: int, split: Split, seed: int) -> None:
        chosen = _first(self.source(split, seed) if tasks is None else tasks, n)
        assert chosen, f"{self.name}: there are no tasks to check"
        if self.spec:
            self.check_splits(_first(self.source("train"), 200), _first(self.source("eval"), 200))
        before = _global_state()
        for task in chosen:
            await self.check_task(task)
        assert _global_state() == before, f"{self.name}: it used or seeded a global random generator; use self.rng"

    def source(self, split: Split, seed: int = 0) -> Any:
        assert self.spec, f"{self.name}: a class has no tasks of its own; give some"
        make = load_target(self.spec.tasks)
        return make(split, seed, **accepted(make, self.options))

    def check_splits(self, train: Sequence[Task], evaluation: Sequence[Task]) -> None:
        for split, tasks in (("train", train), ("eval", evaluation)):
            assert all(task.split == split for task in tasks), f"{self.name}: a task of {split} says another split"
            assert len({task.id for task in tasks}) == len(tasks), f"{self.name}: two tasks of {split} share an id"
        shared = {_content(task) for task in train} & {_content(task) for task in evaluation}
        assert not shared, f"{self.name}: train and eval share {len(shared)} tasks, such as {sorted(shared)[0]:.200}"

    async def check_task(self, task: Task) -> None:
        where = f"{self.name}, task {task.id!r}"
        try:
            assert Task.from_json(task.to_json()) == task, f"{where}: does not survive JSON"
            await self.check_closing(task, where)
            alone = await self.play(task, 1, where)
            together = await self.play(task, 1, where, beside=2)
        except AssertionError:
            raise
        except BaseException as error:
            where = f"{where}, {self.raised_in}" if self.raised_in else where
            raise AssertionError(f"{where}: {_told(error)}") from error
        assert alone == together, (
            f"{where}: the same seed gave another episode beside a second object:\n  {alone}\n  {together}"
        )

    async def play(self, task: Task, seed: int, where: str, beside: int | None = None) -> list[Any]:
        """One episode as plain data; with `beside`, a second object with that seed plays in between."""
        seeds = [seed] if beside is None else [seed, beside]
        envs = [self.build(task, where) for _ in seeds]
        try:
            openings = [await self.reset(env, s, where) for env, s in zip(envs, seeds, strict=True)]
            if beside is not None:
                again = await self.reset(envs[0], seed, where)
                assert again == openings[0], f"{where}: a second reset with the same seed gave another beginning"
            return [_said(openings[0].messages), *await self.steps(envs, openings, where)]
        finally:
            for env in envs:
                await self.close(env, where)

    async def steps(self, envs: Sequence[BaseTaskEnv], openings: Sequence[Opening], where: str) -> list[Any]:
        rngs = [np.random.default_rng(7) for _ in envs]
        over, episode, score = [False] * len(envs), [], 0.0
        for _ in range(self.max_steps):
            for index, env in enumerate(envs):
                if not over[index]:
                    result = await self.step(env, self.player(openings[index], rngs[index]), where)
                    over[index] = result.done
                    if index == 0:
                        score += result.reward
                        episode.append((_said(result.observation), result.reward, result.terminated, result.truncated))
        assert over[0], f"{where}: not over after max_steps = {self.max_steps}"
        self.check_score(score, where)
        return episode

    def check_score(self, score: float, where: str) -> None:
        low, high = self.spec.score_range if self.spec else (-np.inf, np.inf)
        assert low - 1e-9 <= score <= high + 1e-9, f"{where}: its score {score} is not in its range [{low}, {high}]"

    async def reset(self, env: BaseTaskEnv, seed: int, where: str) -> Opening:
        with self.within("reset_s", "reset", where):
            opening = await _value(begin(env, seed))
        assert env.seed == seed, f"{where}: reset did not keep the seed; call super().reset(seed) or self.start(seed)"
        return opening

    async def step(self, env: BaseTaskEnv, action: Message, where: str) -> StepResult:
        with self.within("step_s", "step", where):
            result = as_step_result(await _value(env.step(action)))
        try:
            json.dumps(dict(result.info))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{where}: the info of a step does not survive JSON: {error}") from error
        return StepResult(
            to_messages(result.observation), result.reward, result.terminated, result.truncated, result.info
        )

    async def check_closing(self, task: Task, where: str) -> None:
        """`close` before any `reset`, and a second time: nothing happens."""
        env = self.build(task, where)
        await self.close(env, where)
        await self.close(env, where)

    async def close(self, env: BaseTaskEnv, where: str) -> None:
        with self.within("close_s", "close", where):
            await _value(env.close())

    def build(self, task: Task, where: str) -> BaseTaskEnv:
        with self.within("reset_s", "its constructor", where):
            return build(self.cls, task, self.max_steps, self.options)


def _told(error: BaseException) -> str:
    return f"{words(error)}{raised_at(error.__traceback__)}"


async def _value(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _first(tasks: Any, n: int) -> list[Task]:
    """The first `n` tasks of a source or a sequence."""
    if isinstance(tasks, Sequence):
        return list(tasks[:n])
    with suppress(TypeError):  # an endless source has no length
        n = min(n, len(tasks))
    return [tasks.get(index) for index in range(n)]


def _content(task: Task) -> str:
    return json.dumps([dict(task.payload), task.gold], sort_keys=True)


def _said(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


def _global_state() -> Any:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), name, np.asarray(keys).tolist(), rest
