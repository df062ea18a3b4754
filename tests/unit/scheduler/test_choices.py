"""Which groups take a place: refill, over-sampling, deadlines, debts; each alone, with exact numbers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tunix_core.config import SchedulerConfig
from tunix_core.errors import SuiteStarved
from tunix_core.testing.clock import run

sys.path.insert(0, str(Path(__file__).parent))
from scheduler_fakes import Bench, FakeOpener

ON_POLICY = SchedulerConfig("on_policy")


def trained(bench, suite="a"):
    return [[g.index for v, g in bench.trained if v == step and g.suite == suite] for step in range(len(bench.debts))]


# ---- refill ----
def refilling(teaches, limit, config=ON_POLICY, opener=None, **more):
    return Bench(
        {"a": opener or FakeOpener()}, {"a": 1.0}, 2, config, teaches=teaches, zero_variance="refill",
        refill_limit=limit, **more,
    )  # fmt: skip


def test_a_group_without_a_signal_is_replaced_until_the_limit_and_then_takes_the_place():
    bench = refilling(lambda group: group.index in (4, 9), limit=3)
    run(bench.train(2))
    # step 0: 0 and 1 carry nothing, 2 is the third for its place; 3 carries nothing, 4 does. step 1: likewise.
    assert trained(bench) == [[2, 4], [7, 9]]
    assert [g.index for g in bench.refilled] == [0, 1, 3, 5, 6, 8]
    assert (bench.scheduler.refilled["a"], bench.scheduler.spent["a"], bench.scheduler.consumed["a"]) == (6, 2, 4)
    assert bench.tasks["a"].consumed == list(range(10))


def test_a_limit_of_one_keeps_every_group():
    bench = refilling(lambda group: False, limit=1)
    run(bench.train(2))
    assert trained(bench) == [[0, 1], [2, 3]] and not bench.refilled


def test_kept_groups_count_whether_or_not_they_teach():
    bench = Bench({"a": FakeOpener()}, {"a": 1.0}, 2, ON_POLICY, teaches=lambda group: False)
    run(bench.train(2))
    assert trained(bench) == [[0, 1], [2, 3]] and not bench.scheduler.refilled["a"]


@pytest.mark.parametrize("seed", range(4))
def test_on_policy_what_is_refilled_does_not_depend_on_who_is_first(seed):
    opener = FakeOpener(lambda r: r.random() * 10, turns=2, failing=0.1, seed=seed)
    bench = refilling(lambda group: group.index % 3 == 0, 4, opener=opener)
    run(bench.train(4), timeout_s=1e6)
    plain = refilling(lambda group: group.index % 3 == 0, 4)
    run(plain.train(4))
    assert trained(bench) == trained(plain)


def test_what_replaces_a_group_is_as_fresh_as_any():
    opener = FakeOpener(lambda r: r.expovariate(1.0), seed=2)
    config = SchedulerConfig(max_staleness=1)
    bench = refilling(lambda group: group.index % 4 == 0, 4, config, opener=opener)
    run(bench.train(8), timeout_s=1e6)
    assert all(v - t.oldest_version <= 1 for v, g in bench.trained for t in g.survivors)
    assert bench.scheduler.refilled["a"] > 4 and bench.scheduler.mix_error() == 0


# ---- over-sampling ----
def test_a_group_is_whole_when_enough_have_ended_and_the_others_are_cancelled():
    times = iter([5.0, 1.0, 100.0, 2.0, 3.0, 100.0])
    opener = FakeOpener(lambda _: next(times))
    bench = Bench({"a": opener}, {"a": 1.0}, 1, SchedulerConfig(max_staleness=0), group_size=4, oversample=2)

    async def main():
        await bench.train(1)
        return asyncio.get_running_loop().time()

    assert run(main()) == 5.0
    ((_, group),) = bench.trained
    assert [t.id.sample for t in group.trajectories] == [0, 1, 3, 4]
    assert bench.scheduler.aborted == {"a": 2} and opener.opened == opener.closed == 6


def test_of_those_that_end_at_once_the_first_samples_stay_whatever_they_scored():
    bench = Bench({"a": FakeOpener()}, {"a": 1.0}, 1, SchedulerConfig(max_staleness=0), group_size=3, oversample=2)
    run(bench.train(1))
    ((_, group),) = bench.trained
    assert [t.id.sample for t in group.trajectories] == [0, 1, 2]
    assert bench.scheduler.aborted == {"a": 2}


def test_a_spare_stands_in_for_one_that_failed():
    opener = FakeOpener(failing=0.3, seed=1)
    config = SchedulerConfig(max_staleness=0, max_failure_share=1.0, max_attempts=1)
    bench = Bench({"a": opener}, {"a": 1.0}, 6, config, group_size=3, oversample=3)
    run(bench.train(1))
    groups = [group for _, group in bench.trained]
    assert sum(len(group.survivors) == 3 for group in groups) >= 5
    assert any(t.failure for group in groups for t in group.trajectories)


# ---- deadlines ----
def test_no_step_waits_for_an_episode_over_its_suites_deadline():
    """The hook that scores a group hangs once: its group is passed over, dropped as stale, and comes again."""
    opener = FakeOpener(lambda _: 1.0)
    config = SchedulerConfig(max_staleness=1)
    bench = Bench({"a": opener}, {"a": 1.0}, 2, config, timeouts={"episode_s": 10.0, "score_s": 5.0})
    scorer = bench.plans["a"].suite.scorer
    hung = []

    async def score_group(episodes, scores):
        if not hung and episodes[0].task.id == "t1":
            hung.append(1)
            await asyncio.sleep(40)
        return scores

    scorer.score_group = score_group
    run(bench.train(30))
    assert bench.scheduler.overdue["a"] == 1
    assert all(v - t.oldest_version <= 1 for v, g in bench.trained for t in g.survivors)
    assert sorted(bench.tasks["a"].consumed)[:4] == [0, 1, 2, 3], "the late one's task came again"


def test_an_episode_that_hangs_is_cut_at_its_deadline_and_the_step_waits_for_it():
    opener = FakeOpener(lambda r: 1.0, turns=2, hanging=0.2, seed=3)
    bench = Bench({"a": opener}, {"a": 1.0}, 2, SchedulerConfig(max_staleness=0), timeouts={"episode_s": 10.0})
    run(bench.train(4))
    reasons = {t.stop_reason for _, g in bench.trained for t in g.trajectories}
    assert reasons == {"finished", "deadline"}
    assert bench.scheduler.overdue["a"] == 0


# ---- debts ----
def silent_after(when_s, wakes_s=1e9):
    """Latency 1 s, but between `when_s` and `wakes_s` nothing ends."""

    def latency(_):
        now = asyncio.get_running_loop().time()
        return max(1.0, wakes_s - now) if now >= when_s else 1.0

    return FakeOpener(latency)


def in_debt(openers, **fields):
    config = SchedulerConfig(max_staleness=4, suite_patience_s=30.0, **fields)
    timeouts = {"episode_s": 1e4, "score_s": 1.0}
    return Bench(openers, dict.fromkeys(openers, 1.0), 2 * len(openers), config, train_s=1.0, timeouts=timeouts)


def test_a_silent_suite_owes_and_repays_first():
    bench = in_debt({"a": FakeOpener(lambda _: 1.0), "b": silent_after(8.0, 60.0)}, max_debt_steps=3)
    run(bench.train(20), timeout_s=1e5)
    owed = [debts["b"] for debts in bench.debts]
    assert 0 < max(owed) <= 6 and owed[-1] == 0, owed  # three quotas of two groups
    assert bench.scheduler.consumed["a"] == bench.scheduler.consumed["b"] == 40
    first_with_debt = next(i for i, debt in enumerate(owed) if debt)
    repaid = next(i for i in range(first_with_debt, 20) if not owed[i])
    assert len([g for v, g in bench.trained if v == repaid and g.suite == "b"]) == 2 + owed[repaid - 1]


def test_past_its_debt_the_run_ends_naming_the_suite():
    bench = in_debt({"a": FakeOpener(lambda _: 1.0), "b": silent_after(8.0)}, max_debt_steps=2)
    with pytest.raises(SuiteStarved, match=r"suite 'b' has delivered no group for .*max_debt_steps"):
        run(bench.train(20), timeout_s=1e5)
    assert max(debts["b"] for debts in bench.debts) == 4


def test_or_goes_on_without_it():
    openers = {"a": FakeOpener(lambda _: 1.0), "b": silent_after(8.0), "c": FakeOpener(lambda _: 2.0)}
    bench = in_debt(openers, max_debt_steps=2, on_starved="drop")
    run(bench.train(20), timeout_s=1e5)
    assert list(bench.scheduler.dropped) == ["b"]
    since = bench.scheduler.dropped["b"]
    later = [g.suite for v, g in bench.trained if v >= since]
    assert later.count("a") == later.count("c") == 3 * (20 - since)
    assert openers["b"].opened == openers["b"].closed
    assert bench.scheduler.state()["dropped"] == {"b": since}


def test_the_last_suite_is_never_left_out():
    bench = in_debt({"b": silent_after(8.0)}, max_debt_steps=1, on_starved="drop")
    with pytest.raises(SuiteStarved, match="'b'"):
        run(bench.train(20), timeout_s=1e5)


def test_a_suite_that_always_delivers_is_never_late_however_long_the_trainer_takes():
    config = SchedulerConfig(max_staleness=1, suite_patience_s=3.0, max_debt_steps=0)
    bench = Bench({"a": FakeOpener(lambda _: 2.0)}, {"a": 1.0}, 2, config, train_s=500.0)
    run(bench.train(5), timeout_s=1e5)
    assert bench.debts == [{"a": 0}] * 5
