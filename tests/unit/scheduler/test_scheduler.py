"""The scheduler's promises over random schedules: bound, mix, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.config import SchedulerConfig
from tunix_core.contracts import Sampling
from tunix_core.errors import SuiteStarved, TooManyFailures
from tunix_core.scheduler import Mixture, Scheduler, SuitePlan
from tunix_core.testing.clock import run
from tunix_core.testing.engine import FixedWeights
from tunix_core.types import Group

sys.path.insert(0, str(Path(__file__).parent))
from scheduler_fakes import CountingTasks, FakeOpener, FakeScorer, suite


class Bench:
    """A scheduler over fake suites, and a trainer that takes what the plan accepts."""

    def __init__(self, openers, weights, groups_per_step, config, train_s=0.0, group_size=2, scorer=None):
        self.source = FixedWeights()
        self.tasks = {name: CountingTasks() for name in openers}
        self.mixture = Mixture(weights, groups_per_step)
        self.ready: list[Group] = []
        self.arrived = asyncio.Event()
        self.trained: list[tuple[int, Group]] = []
        self.train_s = train_s
        plans = {
            name: SuitePlan(
                suite(name, opener, self.source, scorer),
                self.tasks[name],
                Sampling(),
                opener.turns,
                group_size,
                min_group=1,
            )
            for name, opener in openers.items()
        }
        self.scheduler = Scheduler(plans, self.mixture, config, seed=7, deliver=self.deliver)

    async def deliver(self, group):
        self.ready.append(group)
        self.arrived.set()

    async def train(self, steps):
        producing = asyncio.create_task(self.scheduler.run())
        for version in range(steps):
            plan = self.scheduler.plan
            while not plan.full:
                group = next((g for g in self.ready if plan.accepts(g)), None)
                if group is None:
                    self.arrived.clear()
                    waiting = asyncio.create_task(self.arrived.wait())
                    await asyncio.wait({waiting, producing}, return_when=asyncio.FIRST_COMPLETED)
                    if producing.done():
                        waiting.cancel()
                        await producing
                    continue
                self.ready.remove(group)
                self.scheduler.consume(group)
                self.trained.append((version, group))
            await asyncio.sleep(self.train_s)
            self.source.version = version + 1
            self.scheduler.advance(version + 1)
        producing.cancel()
        await asyncio.wait({producing})


@settings(max_examples=40)
@given(
    latencies=st.lists(st.floats(0.001, 10.0), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=3, max_size=3),
    groups=st.integers(1, 8),
    staleness=st.integers(0, 4),
    episodes=st.integers(2, 40),
    failing=st.sampled_from([0.0, 0.2]),
    train_s=st.sampled_from([0.0, 0.5, 20.0]),
    seed=st.integers(0, 1000),
)
def test_bound_mix_and_tickets_hold_over_random_schedules(
    latencies, weights, groups, staleness, episodes, failing, train_s, seed
):
    openers = {
        f"s{i}": FakeOpener(lambda r, mean=mean: r.expovariate(1 / mean), turns=2, failing=failing, seed=seed + i)
        for i, mean in enumerate(latencies)
    }
    config = SchedulerConfig(
        max_staleness=staleness, max_episodes=episodes, max_failure_share=1.0, quarantine_after=100
    )
    bench = Bench(openers, dict(zip(openers, weights, strict=False)), groups, config, train_s)
    run(bench.train(steps := 6), timeout_s=1e6)

    for version, group in bench.trained:
        for trajectory in group.survivors:
            assert version - trajectory.oldest_version <= staleness
    keys = [(group.suite, group.index) for _, group in bench.trained]
    assert len(set(keys)) == len(keys)
    for name in openers:
        assert bench.scheduler.consumed[name] == bench.mixture.total(name, steps)
        taken = {index for suite_name, index in keys if suite_name == name}
        held = {index for suite_name, index in bench.scheduler._admitted if suite_name == name}
        assert taken | held | set(bench.tasks[name].returned) == set(range(bench.tasks[name].next))
    for opener in openers.values():
        assert opener.opened - opener.closed == 0


def test_the_mix_holds_when_latencies_differ_ten_thousandfold():
    openers = {
        "fast": FakeOpener(lambda _: 0.001, turns=1),
        "slow": FakeOpener(lambda _: 0.1, turns=1),
        "slowest": FakeOpener(lambda _: 10.0, turns=1),
    }
    bench = Bench(openers, dict.fromkeys(openers, 1.0), 24, SchedulerConfig())
    run(bench.train(50), timeout_s=1e6)
    assert bench.scheduler.mix_error() <= 0.02


def test_on_policy_trains_only_what_the_current_version_sampled():
    openers = {"a": FakeOpener(lambda r: r.random(), turns=3, seed=1)}
    bench = Bench(openers, {"a": 1.0}, 4, SchedulerConfig(mode="on_policy"))
    run(bench.train(5))
    assert all(t.oldest_version == version for version, g in bench.trained for t in g.survivors)


def test_members_of_a_group_get_one_environment_seed_and_groups_differ():
    opener = FakeOpener()
    bench = Bench({"a": opener}, {"a": 1.0}, 2, SchedulerConfig(mode="on_policy"), group_size=4)
    run(bench.train(2))
    seeds = {}
    for task, seed in opener.resets:
        seeds.setdefault(task, set()).add(seed)
    assert len(seeds) >= 4
    assert all(len(found) == 1 for found in seeds.values())
    assert len({next(iter(found)) for found in seeds.values()}) == len(seeds)


def test_a_failing_member_is_retried_in_a_fresh_environment_and_the_group_goes_on():
    opener = FakeOpener(failing=0.4, seed=3)
    bench = Bench({"a": opener}, {"a": 1.0}, 4, SchedulerConfig(max_failure_share=1.0, mode="on_policy"), group_size=8)
    run(bench.train(3))
    attempts = {t.id.attempt for _, g in bench.trained for t in g.trajectories}
    assert 1 in attempts
    assert any(len(g.survivors) < 8 for _, g in bench.trained)


def test_a_task_that_always_fails_is_quarantined_and_another_takes_its_place():
    opener = FakeOpener(poisoned=("t1",))
    bench = Bench({"a": opener}, {"a": 1.0}, 4, SchedulerConfig("on_policy", max_failure_share=1.0), group_size=1)
    run(bench.train(3))
    assert bench.scheduler.failures.quarantined == {"a": ["t1"]}
    assert bench.tasks["a"].skipped == ["t1"]
    assert all(g.task.id != "t1" for _, g in bench.trained)
    assert bench.scheduler.failures.counts["a"]["env_raised"] == 6  # three groups, two attempts each


def test_a_suite_that_mostly_fails_ends_the_run_and_is_named():
    bench = Bench({"bad": FakeOpener(failing=1.0)}, {"bad": 1.0}, 4, SchedulerConfig(failure_window=20))
    with pytest.raises(ExceptionGroup) as caught:
        run(bench.train(3))
    error = caught.value.exceptions[0]
    assert isinstance(error, TooManyFailures)
    assert "'bad'" in str(error) and "env_raised" in str(error) and "bad#" in str(error)


def test_a_suite_whose_tasks_are_all_set_aside_is_named_with_a_failure():
    bench = Bench({"bad": FakeOpener(failing=1.0)}, {"bad": 1.0}, 4, SchedulerConfig(quarantine_after=1))
    take = bench.tasks["bad"].take

    def until_three():
        if len(bench.tasks["bad"].skipped) >= 3:
            raise SuiteStarved("every task is quarantined")
        return take()

    bench.tasks["bad"].take = until_three
    with pytest.raises(ExceptionGroup) as caught:
        run(bench.train(3))
    error = caught.value.exceptions[0]
    assert isinstance(error, SuiteStarved)
    assert "'bad'" in str(error) and "env_raised" in str(error) and "bad#" in str(error)


def test_a_reward_that_gives_none_is_not_retried():
    opener = FakeOpener()
    coin = random.Random(0)
    scorer = FakeScorer(lambda episode: None if coin.random() < 0.3 else 1.0)
    bench = Bench({"a": opener}, {"a": 1.0}, 4, SchedulerConfig(), group_size=4, scorer=scorer)
    run(bench.train(3))
    assert {t.id.attempt for _, g in bench.trained for t in g.trajectories} == {0}
    assert any(len(g.survivors) < 4 for _, g in bench.trained)


def test_drain_waits_for_every_group_in_flight():
    openers = {"a": FakeOpener(lambda r: r.random() * 5, turns=2)}
    bench = Bench(openers, {"a": 1.0}, 2, SchedulerConfig(mode="drain"))

    async def main():
        producing = asyncio.create_task(bench.scheduler.run())
        await asyncio.sleep(1)
        await bench.scheduler.drained()
        assert bench.scheduler.statistics()["groups_running"] == 0
        opened = openers["a"].opened
        await asyncio.sleep(100)
        assert openers["a"].opened == opened  # nothing new until the weights are out
        producing.cancel()
        await asyncio.wait({producing})

    run(main())
