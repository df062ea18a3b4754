"""How a suite's environments are built."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tunix_core.contracts import EnvOpener
from tunix_core.envs import BaseTaskEnv, TaskEnvironment, make_opener
from tunix_core.envs.drive import build
from tunix_core.errors import EnvError, UsageError
from tunix_core.specs import EnvSpec
from tunix_core.types import Task

SPEC = EnvSpec("a/b", "a:B", "a:tasks", max_turns=7)
TASK = Task("t", {"question": "q"}, difficulty=2.0, gold="g")


def opened(opener: EnvOpener, task: Task = TASK) -> Any:
    async def main() -> Any:
        try:
            handle: Any = await opener.open(task)
            return handle._cell._env
        finally:
            await opener.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"isolation": "container"}, "not available yet; expected 'in-process', 'process' or 'venv'"),
        ({"isolation": "elsewhere"}, "not available yet"),
        ({"isolation": "venv"}, r"'venv' and python = ''; the one needs the other.*envs/theirs/bin/python"),
        ({"isolation": "process", "python": "x"}, "'process' and python = 'x'; the one needs the other"),
        (
            {"isolation": "venv", "python": "gone/bin/python"},
            "no program 'gone/bin/python'.* -m venv gone",
        ),
    ],
)
def test_an_isolation_that_is_not_there_is_refused(how: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_opener(SPEC, lambda target: TaskEnvironment, **how)


def test_a_target_that_is_no_class_is_refused() -> None:
    with pytest.raises(UsageError, match="must be a class"):
        make_opener(SPEC, lambda target: len)


def test_a_class_that_is_no_environment_breaks_the_contract(suite: Callable[..., EnvOpener]) -> None:
    with pytest.raises(EnvError, match=r"must be a tunix_core\.envs\.BaseTaskEnv, not NotAnEnv") as caught:
        opened(suite("NotAnEnv"))
    assert caught.value.kind == "env_contract"


def test_the_decision_hook_may_give_the_environment() -> None:
    asked: list[Any] = []

    def decide(hook: str, **arguments: Any) -> Any:
        asked.append((hook, arguments))
        return special if arguments["task"].id == "t" else None

    special = TaskEnvironment({"question": "special"})
    for isolation in ("in-process", "process"):
        opener = make_opener(SPEC, lambda target: TaskEnvironment, isolation=isolation, decide=decide)
        assert opened(opener) is special
    assert asked[0] == ("tunix_make_env", {"spec": SPEC, "task": TASK})
    opener = make_opener(SPEC, lambda target: TaskEnvironment, decide=decide)
    assert opened(opener, Task("other")) is not special


def test_what_a_plugin_gives_must_be_an_environment() -> None:
    with pytest.raises(EnvError, match="BaseTaskEnv, not str"):
        opened(make_opener(SPEC, lambda target: TaskEnvironment, decide=lambda hook, **_: "no"))


class Named(BaseTaskEnv):
    def __init__(self, task: Any, *, size: int = 4, max_steps: int = 2) -> None:
        super().__init__(task, max_steps=max_steps)
        self.size = size


class Fixed(BaseTaskEnv):
    """In the manner of code that fixes its own length and passes the rest on."""

    def __init__(self, task: Any, **kwargs: Any) -> None:
        self.seen = task["question"]
        super().__init__(task=task, max_steps=3, **kwargs)


class Bare(BaseTaskEnv):
    def __init__(self, single_example: Any) -> None:
        super().__init__(single_example)


def test_the_constructor_gets_the_options_it_takes() -> None:
    options = {"size": 9, "length": 100}
    env: Any = build(Named, TASK, 5, options)
    assert (env.size, env.max_steps) == (9, 5)
    env = build(Fixed, TASK, 5, options)
    assert (env.seen, env.max_steps, env.extra_kwargs) == ("q", 5, options)
    assert build(Bare, TASK, None, options).max_steps == 1
    assert build(Bare, TASK, 4, options).max_steps == 4


@pytest.mark.parametrize("cls", [Named, Fixed, Bare, TaskEnvironment])
def test_the_environment_knows_the_whole_task(cls: type[BaseTaskEnv]) -> None:
    env = build(cls, TASK, 5, {})
    assert env.task == {"question": "q"} and type(env.task["question"]) is str
    assert env.full_task == TASK


def test_the_steps_are_the_specs_unless_the_suite_says() -> None:
    assert opened(make_opener(SPEC, lambda target: Named)).max_steps == 7
    assert opened(make_opener(SPEC, lambda target: Named, max_steps=3)).max_steps == 3
