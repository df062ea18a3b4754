"""A pipeline that is killed and opened again: nothing is lost, nothing trained twice, finished groups are kept."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.config import SchedulerConfig
from tunix_core.contracts import Sampling
from tunix_core.rollout import Suite
from tunix_core.run.build import QUIET
from tunix_core.run.pipeline import Pipeline
from tunix_core.run.saved_groups import decode_groups, encode_groups
from tunix_core.scheduler import Mixture, SuitePlan
from tunix_core.specs import Timeouts
from tunix_core.tasks import GeneratedSource, TaskStream
from tunix_core.testing.chat import FakeChatFormat
from tunix_core.testing.clock import run
from tunix_core.testing.engine import FakeEngine, FixedWeights
from tunix_core.types import Message, Opening, Score, StepResult, Task


class Env:
    """One step of random length; fails now and then."""

    sandbox = None

    def __init__(self, draws: random.Random, failing: float) -> None:
        self.draws, self.failing, self.steps = draws, failing, 0

    async def open(self, task: Task) -> Env:
        self.steps += 1
        return self

    async def reset(self, seed: int) -> Opening:
        return Opening((Message.of("user", "go"),))

    async def step(self, action: Message) -> StepResult:
        await asyncio.sleep(self.draws.expovariate(1.0))
        if self.draws.random() < self.failing:
            raise RuntimeError("it broke")
        return StepResult((), self.draws.random(), terminated=True)

    async def close(self) -> None: ...


class Straggler(Env):
    """The first task's episodes never end."""

    async def open(self, task: Task) -> Env:
        self.steps += 1
        return Straggler(self.draws, 0.0) if task.id == "t0" else Env(self.draws, 0.0)

    async def step(self, action: Message) -> StepResult:
        await asyncio.sleep(1e9)
        raise AssertionError


class Scorer:
    async def score(self, episode: Any) -> Score:
        return Score(sum(episode.step_rewards))

    async def score_group(self, episodes: Any, scores: Any) -> Any:
        return scores


class Run:
    """What survives a crash is what was saved, as JSON, at a step's boundary; `trained` is the truth it is held to."""

    make_env, timeouts = Env, Timeouts()

    def __init__(self, seed: int, staleness: int, failing: float, silent: float) -> None:
        self.draws, self.failing, self.silent = random.Random(seed), failing, silent
        self.config = SchedulerConfig(max_staleness=staleness, max_failure_share=1.0, quarantine_after=50)
        self.saved = json.dumps({"version": 0})
        self.trained: list[tuple[str, int]] = []
        self.ran: list[tuple[str, int]] = []

    def open(self) -> Pipeline:
        saved = json.loads(self.saved)
        self.source = FixedWeights(saved["version"])
        waiting = decode_groups(saved.get("groups", ()))
        held = {name: [g.index for g, _ in waiting if g.suite == name] for name in ("a", "b")}
        mixture = Mixture({"a": 2.0, "b": 1.0}, 5)
        pipeline = Pipeline(
            {name: self.plan(name, saved, held[name]) for name in held},
            mixture,
            self.config,
            seed=0,
            teaches=lambda group: random.Random(group.index).random() >= self.silent,
            observe=lambda trajectory: self.ran.append((trajectory.id.suite, trajectory.id.group)),
            waiting=waiting,
            version=saved["version"],
            saved=saved,
        )
        assert len(pipeline.queue.waiting()) == len(waiting)
        return pipeline

    def plan(self, name: str, saved: Any, held: list[int]) -> SuitePlan:
        engine = FakeEngine(lambda request: b"yes", version_source=self.source)
        tasks = TaskStream(GeneratedSource(lambda index: Task(f"t{index}")), seed=0)
        if "tasks" in saved:
            tasks.restore(saved["tasks"][name], held)
        env = self.make_env(self.draws, self.failing)
        suite = Suite(name, "x/env", env, Scorer(), engine, FakeChatFormat(), QUIET, self.timeouts)
        return SuitePlan(suite, tasks, Sampling(), 1, group_size=2, min_group=1, zero_variance="refill", refill_limit=3)

    async def go(self, steps: int, save_at: int, killed_after_s: float) -> None:
        """Takes steps until it is killed; a step counts as taken once it was saved."""
        pipeline, fresh = self.open(), list[tuple[str, int]]()
        pipeline.start()
        try:
            async with asyncio.timeout(killed_after_s):
                for version in range(self.source.version, self.source.version + steps):
                    taken = await pipeline.collect(self.take)
                    fresh += [(g.suite, g.index) for g in [*taken.groups, *taken.refilled]]
                    assert all(version - t.oldest_version <= self.config.max_staleness
                               for g in taken.groups for t in g.survivors)  # fmt: skip
                    await asyncio.sleep(0.3)
                    self.source.version = version + 1
                    pipeline.scheduler.advance(version + 1)
                    if (version + 1) % save_at == 0:
                        state = pipeline.state()
                        groups = encode_groups(state["groups"])
                        self.saved = json.dumps(state | {"groups": groups, "version": version + 1})
                        self.trained += fresh
                        fresh = []
        except TimeoutError:
            pass
        finally:
            await pipeline.aclose()

    async def take(self, group: Any) -> None: ...


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    staleness=st.integers(0, 3),
    failing=st.sampled_from([0.0, 0.3]),
    silent=st.sampled_from([0.0, 0.5]),
    save_at=st.integers(1, 3),
    kills=st.lists(st.floats(0.1, 12.0), max_size=4),
)
def test_killed_at_any_moment_it_goes_on_as_if_nothing_had_happened(seed, staleness, failing, silent, save_at, kills):
    killed = Run(seed, staleness, failing, silent)
    for after_s in kills:
        run(killed.go(50, save_at, after_s))
    run(killed.go(6 * save_at, save_at, 1e5), timeout_s=1e6)

    assert len(set(killed.trained)) == len(killed.trained), "trained twice"
    saved = json.loads(killed.saved)
    for name, cursor in saved["tasks"].items():
        done = {index for suite, index in killed.trained if suite == name}
        assert done | set(cursor["unconsumed"]) == set(range(cursor["next"])), "lost"
        assert not done & set(cursor["unconsumed"])
        assert saved["consumed"][name] + saved["refilled"][name] == len(done)
        assert saved["consumed"][name] == Mixture({"a": 2.0, "b": 1.0}, 5).total(name, saved["version"])


def test_finished_groups_are_trained_and_not_run_again():
    killed = Run(seed=5, staleness=4, failing=0.0, silent=0.0)
    run(killed.go(3, 1, 1e5))
    kept = {(g["suite"], g["index"]) for g in json.loads(killed.saved)["groups"]}
    assert kept, "the queue held something"
    killed.ran.clear()
    run(killed.go(3, 1, 1e5))
    assert kept <= set(killed.trained) and not kept & set(killed.ran)


def test_a_straggler_wedges_neither_a_step_nor_the_resumed_run():
    class Straggling(Run):
        make_env, timeouts = Straggler, Timeouts(episode_s=20.0, score_s=1.0)

    killed, first = Straggling(seed=1, staleness=1, failing=0.0, silent=0.0), {("a", 0), ("b", 0)}
    versions = [0]
    for _ in range(3):
        run(killed.go(50, 1, killed_after_s=8.0))
        versions.append(json.loads(killed.saved)["version"])
    assert versions == sorted(set(versions)) and not first & set(killed.trained), versions
    run(killed.go(4, 1, 1e5), timeout_s=200.0)
    assert first <= set(killed.trained)
