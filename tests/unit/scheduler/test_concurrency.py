"""Little's law and the engine's state, as bounds on what is started."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.config import SchedulerConfig
from tunix_core.scheduler import Concurrency
from tunix_core.testing.clock import run

sys.path.insert(0, str(Path(__file__).parent))
from scheduler_fakes import Bench, FakeOpener


def test_before_anything_is_measured_the_bound_alone_holds():
    concurrency = Concurrency({"a": 8}, 256)
    assert concurrency.lead("a", 4) == 4 and concurrency.limit == 256
    assert math.isnan(concurrency.wanted("a", 3))


@given(group_s=st.floats(0.001, 1e4), step_s=st.floats(0.001, 1e4), bound=st.integers(0, 8))
def test_a_suite_is_started_as_early_as_its_time_asks_for(group_s, step_s, bound):
    concurrency = Concurrency({"a": 8}, 256)
    concurrency.group("a", group_s)
    concurrency.step(step_s)
    assert concurrency.lead("a", bound) == min(bound, math.ceil(group_s / step_s) + 1)


def test_where_groups_are_replaced_more_are_started():
    concurrency = Concurrency({"a": 8}, 256)
    concurrency.group("a", 1.0)
    concurrency.step(1.0)
    assert [concurrency.lead("a", 8, per_place) for per_place in (1.0, 1.5, 3.0)] == [2, 3, 6]


def test_what_takes_longer_than_a_step_waits_and_the_bound_lasts_is_too_old_at_its_end():
    concurrency = Concurrency({"a": 8}, 256)
    assert not concurrency.outlasts("a", 2, 60.0)
    concurrency.group("a", 100.0)
    concurrency.step(10.0)
    assert concurrency.outlasts("a", 2, 60.0)
    assert not concurrency.outlasts("a", 2, 120.0), "a step waits for it"
    assert not concurrency.outlasts("a", 10, 60.0), "it is within the bound"


def test_episodes_in_flight_are_rate_times_latency():
    concurrency = Concurrency({"a": 8}, 256)
    for _ in range(3):
        concurrency.episode("a", 10.0)
        concurrency.step(2.0)
    assert concurrency.wanted("a", 3) == 8 * 3 * 10.0 / 2.0


class Engine:
    def __init__(self, **numbers):
        self.numbers = numbers

    def __call__(self):
        return self.numbers


def after(concurrency, looks, running=None):
    for number in range(looks):
        concurrency.look(float(number), concurrency.limit if running is None else running)
    return concurrency.limit


def test_a_saturated_engine_gets_fewer_episodes_down_to_what_fills_its_slots():
    concurrency = Concurrency({"a": 8}, 1000, slots=32, engine=Engine(queued=500.0))
    assert 64 < after(concurrency, 5) < 1000
    assert after(concurrency, 200) == 64


def test_an_engine_that_waits_for_work_gets_more_up_to_the_bound():
    engine = Engine(queued=500.0)
    concurrency = Concurrency({"a": 8}, 1000, slots=32, engine=engine)
    after(concurrency, 200)
    engine.numbers = {"queued": 0.0}
    assert after(Concurrency({"a": 8}, 1000, slots=32, engine=engine), 50) == 1000
    concurrency._looked = -math.inf
    assert after(concurrency, 15, running=1) == 64, "the bound isn't what keeps it empty"
    concurrency._looked = -math.inf
    assert after(concurrency, 500) == 1000


def test_a_moderate_queue_is_left_alone_unless_the_cache_is_lost():
    engine = Engine(queued=64.0, cached_tokens=0.0, prefill_tokens=0.0)
    concurrency = Concurrency({"a": 8}, 1000, slots=32, engine=engine)
    for look in range(20):
        engine.numbers = {"queued": 64.0, "cached_tokens": 900.0 * look, "prefill_tokens": 100.0 * look}
        concurrency.look(float(look), 1000)
    assert concurrency.limit == 1000
    cached, computed = 900.0 * 19, 100.0 * 19
    for look in range(20, 60):
        cached, computed = cached + 100, computed + 900
        engine.numbers = {"queued": 64.0, "cached_tokens": cached, "prefill_tokens": computed}
        concurrency.look(float(look), 1000)
    assert concurrency.limit < 500


def test_an_engine_that_says_nothing_changes_nothing():
    assert after(Concurrency({"a": 8}, 100, slots=8, engine=Engine()), 50) == 100
    assert after(Concurrency({"a": 8}, 100, engine=Engine(queued=1e6)), 50) == 100


def test_a_fast_suite_is_not_started_earlier_than_it_is_needed():
    """Its groups would only age: with 100 s steps and 1 s episodes two steps ahead are enough."""
    openers = {"fast": FakeOpener(lambda _: 1.0), "slow": FakeOpener(lambda _: 100.0)}
    bench = Bench(openers, dict.fromkeys(openers, 1.0), 4, SchedulerConfig(max_staleness=4), train_s=30.0)
    run(bench.train(12), timeout_s=1e5)
    age = {
        name: [v - t.oldest_version for v, g in bench.trained if v > 6 and g.suite == name for t in g.survivors]
        for name in openers
    }
    assert max(age["fast"]) == 2 and bench.scheduler.mix_error() == 0
    statistics = bench.scheduler.suite_statistics("fast")
    assert statistics["lead_steps"] == 2 and statistics["concurrency_wanted"] == pytest.approx(0.1, rel=0.5)


def test_no_more_episodes_are_admitted_than_the_limit_lets_run():
    opener = FakeOpener(lambda _: 1.0)
    config = SchedulerConfig(max_episodes=4, max_staleness=4)
    bench = Bench({"a": opener}, {"a": 1.0}, 8, config, group_size=2)
    run(bench.train(3))
    assert bench.most_members <= 4
    assert max(v - t.oldest_version for v, g in bench.trained for t in g.survivors) <= 1, "nothing was let in early"
