"""A suite's parts, made from its config: what does not fit what is installed is told by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tunix_core.config import RunConfig, SuiteConfig, TimeoutsConfig, load_config
from tunix_core.contracts import Sampling
from tunix_core.errors import PluginError, UnknownIdError, UsageError
from tunix_core.plugins import Hub
from tunix_core.run.build import algorithms, environments, greedy, prepare
from tunix_core.types import Task

PLUGIN = """
from tunix_core import AlgorithmSpec, EnvSpec, Option, Task, Timeouts, hookimpl
from tunix_core.contracts import Algorithm
from tunix_core.envs import TaskEnvironment

class Pond(TaskEnvironment):
    pass

class Tasks:
    def __init__(self, split, seed, *, depth=1):
        if depth > 9:
            raise ValueError("too deep")
        self.name = f"{split}-{seed}-{depth}"

    def get(self, index):
        return Task(f"{self.name}-{index}")

def from_file(split, seed, *, path):
    return open(path)

def learn(**options):
    return Algorithm(str(options), lambda scores: scores, lambda logp, batch: None)

def strict(*, clip=0.2):
    return learn(clip=clip)

@hookimpl
def tunix_register_envs(register):
    options = {"depth": Option(2), "color": Option("blue")}
    register(EnvSpec("x", "pond:Pond", "pond:Tasks", options=options, max_turns=7, timeouts=Timeouts(step_s=3.0)))
    register(EnvSpec("file", "pond:Pond", "pond:from_file", options={"path": Option("nowhere.jsonl")}))
    register(EnvSpec("broken", "pond:Absent", "pond:Tasks"))

@hookimpl
def tunix_register_algorithms(register):
    register(AlgorithmSpec("a", "pond:learn"))
    register(AlgorithmSpec("b", "pond:learn"))
    register(AlgorithmSpec("strict", "pond:strict", options={"clip": Option(0.2)}))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    path = tmp_path_factory.mktemp("plugin") / "pond.py"
    path.write_text(PLUGIN)
    before = list(sys.path)
    yield Hub.load([path])
    sys.path[:] = before
    del sys.modules["pond"]


def suite(env: str = "pond/x", **fields: Any) -> SuiteConfig:
    return SuiteConfig(env=env, name="mine", **fields)


def test_what_the_config_leaves_open_is_the_environments_own(hub: Hub) -> None:
    bench = prepare(suite(), hub)
    assert (bench.options, bench.max_turns) == ({"depth": 2, "color": "blue"}, 7)
    assert (bench.timeouts.step_s, bench.timeouts.reset_s) == (3.0, 60.0)
    given = prepare(suite(options={"depth": 5}, max_turns=2, timeouts=TimeoutsConfig(reset_s=1.0)), hub)
    assert (given.options, given.max_turns) == ({"depth": 5, "color": "blue"}, 2)
    assert (given.timeouts.step_s, given.timeouts.reset_s) == (3.0, 1.0)


def test_what_lives_in_a_virtual_environment_is_not_imported_here(hub: Hub) -> None:
    bench = prepare(suite("pond/broken", isolation="venv", python="gone/bin/python"), hub)
    assert bench.tasks("train", 0).get(0) == Task("train-0-1-0")
    with pytest.raises(UsageError, match="no program 'gone/bin/python'"):
        environments(bench, hub)


def test_tasks_are_made_from_the_options_that_their_maker_takes(hub: Hub) -> None:
    assert prepare(suite(options={"depth": 5}), hub).tasks("eval", 4).get(1) == Task("eval-4-5-1")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            suite(options={"depht": 1}),
            "suite 'mine': pond/x has no option 'depht'. Did you mean 'depth'? It takes: depth",
        ),
        (suite("pond/broken", options={"q": 1}), "pond/broken: 'pond:Absent' of file .*Absent"),
        (suite("pond/y"), "envs has no 'pond/y'; file .*registers no such id"),
        (suite("x"), "'x' is not a whole id; write 'pond/x'"),
        (suite(options={"depth": "deep"}), "option 'depth' is the text 'deep'; expected a number, like its default 2"),
        (suite("brook/x"), "no installed package has namespace 'brook'. Try: pip install tunix-env-brook"),
    ],
)
def test_what_is_not_there_is_refused_by_name(hub: Hub, given: SuiteConfig, says: str) -> None:
    with pytest.raises((UsageError, UnknownIdError, PluginError), match=says.replace("?", r"\?")):
        prepare(given, hub)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (suite(options={"depth": 10}), "suite 'mine': its tasks can't be made from .*'depth': 10.*: too deep"),
        (suite(options={"depth": [3]}), "suite 'mine': its tasks can't be made from .*'depth': .3."),
        (suite("pond/file"), "suite 'mine': its tasks can't be made from .*No such file or directory: 'nowhere.jsonl'"),
    ],
)
def test_options_that_the_package_refuses_are_told_with_its_reason(hub: Hub, given: SuiteConfig, says: str) -> None:
    bench = prepare(given, hub)
    with pytest.raises(UsageError, match=says):
        bench.tasks("train", 0)


@pytest.fixture
def config() -> Callable[[str], RunConfig]:
    def make(trainer: str) -> RunConfig:
        suites = (
            '[[suite]]\nname = "one"\nenv = "pond/x"\n[[suite]]\nname = "two"\nenv = "pond/x"\nalgorithm = "pond/b"\n'
        )
        return load_config(None, text=f"[trainer]\n{trainer}\n{suites}")

    return make


def test_suites_of_one_algorithm_share_it(hub: Hub, config: Callable[[str], RunConfig]) -> None:
    made = algorithms(config('algorithm = "pond/b"\noptions = { clip = 2 }'), hub)
    assert made["one"] is made["two"] and made["one"].id == "{'clip': 2}"


def test_the_trainers_options_are_for_its_own_algorithm(hub: Hub, config: Callable[[str], RunConfig]) -> None:
    made = algorithms(config('algorithm = "pond/a"\noptions = { clip = 2 }'), hub)
    assert (made["one"].id, made["two"].id) == ("{'clip': 2}", "{}")


def test_a_suite_may_have_options_of_its_own(hub: Hub) -> None:
    suites = """
        [trainer]
        algorithm = "pond/a"
        options = { clip = 2, low = 1 }
        [[suite]]
        name = "one"
        env = "pond/x"
        [[suite]]
        name = "two"
        env = "pond/x"
        algorithm_options = { clip = 3 }
        [[suite]]
        name = "three"
        env = "pond/x"
        algorithm = "pond/b"
        algorithm_options = { clip = 3 }
        [[suite]]
        name = "four"
        env = "pond/x"
        algorithm_options = { low = 1, clip = 2 }
    """
    made = algorithms(load_config(None, text=suites), hub)
    assert made["two"].id == "{'clip': 3, 'low': 1}" and made["three"].id == "{'clip': 3}"
    assert made["one"] is made["four"] and made["one"] is not made["two"]


def test_an_option_that_an_algorithm_does_not_take_is_refused(hub: Hub, config: Callable[[str], RunConfig]) -> None:
    with pytest.raises(UsageError, match=r"pond/strict has no option 'klip'. Did you mean 'clip'\? It takes: clip"):
        algorithms(config('algorithm = "pond/strict"\noptions = { klip = 2 }'), hub)


def test_greedy_keeps_the_budgets() -> None:
    drawn = Sampling(0.7, top_k=5, top_p=0.9, min_p=0.1, max_tokens=3, max_episode_tokens=9)
    assert greedy(drawn) == Sampling(0.0, max_tokens=3, max_episode_tokens=9)
