"""The scheduler's promises over random schedules: bound, mix, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.config import SchedulerConfig
from tunix_core.errors import EnvError, SuiteStarved, TooManyFailures
from tunix_core.scheduler.failures import FailureLog
from tunix_core.testing.clock import run
from tunix_core.types import Failure, Message, SampleId, Score, Task, Trajectory

sys.path.insert(0, str(Path(__file__).parent))
from scheduler_fakes import Bench, FakeHandle, FakeOpener, FakeScorer


@settings(max_examples=40)
@given(
    latencies=st.lists(st.floats(0.001, 10.0), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=3, max_size=3),
    groups=st.integers(1, 6),
    mode=st.sampled_from(["in_flight", "in_flight", "drain", "on_policy"]),
    staleness=st.integers(0, 4),
    episodes=st.integers(2, 40),
    failing=st.sampled_from([0.0, 0.2]),
    hanging=st.sampled_from([0.0, 0.05]),
    oversample=st.integers(0, 2),
    silent=st.sampled_from([0.0, 0.6]),
    limit=st.integers(1, 3),
    patience_s=st.sampled_from([0.5, 5.0, 1e5]),
    max_debt=st.integers(0, 5),
    on_starved=st.sampled_from(["end", "drop"]),
    train_s=st.sampled_from([0.0, 0.5, 20.0]),
    seed=st.integers(0, 1000),
)
def test_every_promise_holds_over_random_schedules(
    latencies, weights, groups, mode, staleness, episodes, failing, hanging, oversample, silent, limit, patience_s,
    max_debt, on_starved, train_s, seed,
):  # fmt: skip
    """Failures, hangs, deadlines, refill, over-sampling, debts and drops at once: no deadlock (the clock would
    say so), no token beyond the bound, no task lost, none trained twice, queues and debts within their bounds."""
    openers = {
        f"s{i}": FakeOpener(
            lambda r, mean=mean: r.expovariate(1 / mean), turns=2, failing=failing, hanging=hanging, seed=seed + i
        )
        for i, mean in enumerate(latencies)
    }
    config = SchedulerConfig(
        mode,
        max_staleness=staleness,
        max_episodes=episodes,
        max_failure_share=1.0,
        quarantine_after=100,
        suite_patience_s=patience_s,
        max_debt_steps=max_debt,
        on_starved=on_starved,
    )
    bench = Bench(
        openers,
        dict(zip(openers, weights, strict=False)),
        groups,
        config,
        train_s=train_s,
        timeouts={"episode_s": 60.0, "score_s": 1.0},
        teaches=lambda group: random.Random(group.index).random() >= silent,
        oversample=0 if mode == "on_policy" else oversample,
        zero_variance="refill",
        refill_limit=limit,
    )
    steps = 6
    with suppress(SuiteStarved):
        run(bench.train(steps), timeout_s=1e6)
        check_all_consumed(bench, steps)
    check_promises(bench, groups, 0 if mode == "on_policy" else staleness, max_debt)


def check_all_consumed(bench, steps):
    """Every place was taken, but for what a suite owes or was dropped for."""
    for name, tasks in bench.tasks.items():
        owed = bench.debts[-1][name]
        if name not in bench.mixture.dropped:
            assert bench.scheduler.consumed[name] + owed == bench.mixture.total(name, steps)
        done = [*tasks.consumed, *tasks.open, *tasks.returned]
        assert sorted(done) == list(range(tasks.next)), "a task is lost, or is in two places"


def check_promises(bench, groups, bound, max_debt):
    for version, group in bench.trained:
        assert all(version - t.oldest_version <= bound for t in group.survivors)
        assert sum(t.failure is None for t in group.trajectories) <= 2
    keys = [(group.suite, group.index) for group in [*(g for _, g in bench.trained), *bench.refilled]]
    assert len(set(keys)) == len(keys), "trained twice"
    for name, opener in bench.openers.items():
        mine = [group for _, group in bench.trained if group.suite == name]
        refilled = [group for group in bench.refilled if group.suite == name]
        assert len(refilled) <= (bench.plans[name].refill_limit - 1) * (len(mine) + 1)
        assert opener.opened == opener.closed
    for version, debts in enumerate(bench.debts):
        for name, debt in debts.items():
            since = max(0, version + 1 - max_debt)
            assert debt <= bench.mixture.total(name, version + 1) - bench.mixture.total(name, since)
    assert bench.largest_queue <= groups * (bound + 1 + max_debt)
    assert bench.most_members <= bench.config.max_episodes


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (3.0, 2.0, 1.0)])
def test_the_mix_holds_when_latencies_differ_ten_thousandfold(weights):
    openers = {
        "fast": FakeOpener(lambda _: 0.001, turns=1),
        "slow": FakeOpener(lambda _: 0.1, turns=1),
        "slowest": FakeOpener(lambda _: 10.0, turns=1),
    }
    bench = Bench(openers, dict(zip(openers, weights, strict=True)), 24, SchedulerConfig())
    run(bench.train(50), timeout_s=1e6)
    assert bench.scheduler.mix_error() <= 0.02
    for first in range(0, 41):
        window = Counter(group.suite for version, group in bench.trained if first <= version < first + 10)
        assert bench.mixture.error(window) <= 0.05


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


def test_a_retry_repeats_that_one_member_and_what_it_had_is_closed():
    class Broken(FakeHandle):
        async def step(self, action: Message) -> NoReturn:
            raise EnvError("it broke")

    class BreaksOnce(FakeOpener):
        async def open(self, task: Task) -> FakeHandle:
            handle = await super().open(task)
            return Broken(self, task) if self.opened == 3 else handle

    opener = BreaksOnce()
    bench = Bench({"a": opener}, {"a": 1.0}, 1, SchedulerConfig(max_staleness=0), group_size=4)
    run(bench.train(1))
    ((_, group),) = bench.trained
    assert [(t.id.sample, t.id.attempt) for t in group.survivors] == [(0, 0), (1, 0), (2, 1), (3, 0)]
    assert opener.opened == opener.closed == 5


def test_each_further_attempt_waits_twice_as_long_as_the_one_before():
    starts: list[float] = []

    class Broken(FakeOpener):
        async def open(self, task: Task) -> NoReturn:
            starts.append(asyncio.get_running_loop().time())
            raise EnvError("it broke")

    config = SchedulerConfig(max_failure_share=1.0, max_attempts=4, max_staleness=0)
    bench = Bench({"a": Broken()}, {"a": 1.0}, 1, config, group_size=1)

    async def main():
        bench.open()
        await asyncio.sleep(3.6)
        await bench.pipeline.aclose()

    run(main())
    assert starts == [0.0, 0.5, 1.5, 3.5, 3.5]  # then the group has failed, and its task has another turn


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
    with pytest.raises(TooManyFailures, match=r"'bad'.*env_raised.*bad#"):
        run(bench.train(3))


def test_a_suite_whose_tasks_are_all_set_aside_is_named_with_a_failure():
    bench = Bench({"bad": FakeOpener(failing=1.0)}, {"bad": 1.0}, 4, SchedulerConfig(quarantine_after=1))
    take = bench.tasks["bad"].take

    def until_three():
        if len(bench.tasks["bad"].skipped) >= 3:
            raise SuiteStarved("every task is quarantined")
        return take()

    bench.tasks["bad"].take = until_three
    with pytest.raises(SuiteStarved, match=r"'bad'.*env_raised.*bad#"):
        run(bench.train(3))


def test_a_reward_that_gives_none_is_not_retried():
    opener = FakeOpener()
    coin = random.Random(0)
    scorer = FakeScorer(lambda episode: None if coin.random() < 0.3 else 1.0)
    bench = Bench({"a": opener}, {"a": 1.0}, 4, SchedulerConfig(), group_size=4, scorer=scorer)
    run(bench.train(3))
    assert {t.id.attempt for _, g in bench.trained for t in g.trajectories} == {0}
    assert any(len(g.survivors) < 4 for _, g in bench.trained)


def test_what_a_group_reward_gives_reaches_the_sample_it_was_given_for():
    values = iter([1.0, None, 3.0, 4.0])
    scorer = FakeScorer(lambda episode: next(values))

    async def tenfold(episodes, scores):
        return [Score(10.0 * score.value) for score in scores]

    scorer.score_group = tenfold
    config = SchedulerConfig(max_staleness=0)
    bench = Bench({"a": FakeOpener()}, {"a": 1.0}, 1, config, group_size=4, scorer=scorer)
    run(bench.train(1))
    ((_, group),) = bench.trained
    assert [(t.id.sample, t.score.value) for t in group.trajectories] == [(0, 10.0), (1, None), (2, 30.0), (3, 40.0)]


@pytest.mark.parametrize(("mode", "goes_on"), [("in_flight", True), ("drain", False)])
def test_an_episode_goes_on_through_new_weights_unless_they_wait_for_it(mode, goes_on):
    opener = FakeOpener(lambda r: r.expovariate(1.0), turns=4, seed=1)
    bench = Bench({"a": opener}, {"a": 1.0}, 2, SchedulerConfig(mode=mode), train_s=1.0)
    run(bench.train(6))
    survivors = [t for _, group in bench.trained for t in group.survivors]
    versions = [{int(v) for span in t.spans if span.sampled for v in span.versions} for t in survivors]
    assert any(len(of_one) > 1 for of_one in versions) == goes_on


def test_a_suite_that_is_mostly_given_no_score_ends_the_run_and_is_named():
    scorer = FakeScorer(lambda episode: None)
    bench = Bench({"mute": FakeOpener()}, {"mute": 1.0}, 4, SchedulerConfig(failure_window=20), scorer=scorer)
    with pytest.raises(TooManyFailures, match=r"'mute': 11 of the last 11 .*no_score.*a reward gave None"):
        run(bench.train(3))
    assert bench.scheduler.failures.counts["mute"]["no_score"] >= 11


@pytest.mark.parametrize("good", [0, 10])
def test_what_no_success_could_help_any_more_is_told_before_the_window_is_full(good):
    raised = Failure("reward_raised", "reward.mine", "KeyError: 'answer' (mine.py:3)")
    log = FailureLog(0.5, 20, 3)
    for number in range(good):
        log.episode(ended(number, None))
    for number in range(good, good + 10):
        log.episode(ended(number, raised))
    with pytest.raises(TooManyFailures, match=rf"'own': 11 of the last {min(20, 11 + good)} .*mine\.py:3"):
        log.episode(ended(good + 10, raised))


def ended(number, failure):
    score = Score(None, failure=failure) if failure else Score(1.0)
    status = "failed" if failure else "terminated"
    return Trajectory(
        SampleId("own", number, 0), "e", Task(str(number)), 0, status=status, failure=failure, score=score
    )


def test_drain_waits_for_every_group_in_flight():
    openers = {"a": FakeOpener(lambda r: r.random() * 5, turns=2)}
    bench = Bench(openers, {"a": 1.0}, 2, SchedulerConfig(mode="drain"))

    async def main():
        pipeline = bench.open()
        await asyncio.sleep(1)
        await bench.scheduler.drained()
        assert bench.scheduler.statistics()["groups_running"] == 0
        opened = openers["a"].opened
        await asyncio.sleep(100)
        assert openers["a"].opened == opened  # nothing new until the weights are out
        await pipeline.aclose()

    run(main())
