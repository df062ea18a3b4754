from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.config import RewardConfig
from tunix_core.contracts import Episode
from tunix_core.errors import GoldError, GraderError, SandboxError, UsageError
from tunix_core.rewards import GraderTimeout, WorkerPool, group_reward, make_scorer, reward
from tunix_core.rewards.threads import abandoned_threads
from tunix_core.specs import Timeouts
from tunix_core.types import Message, Score, Task

T = TypeVar("T")


def episode(text: str = "", rewards: Sequence[float] = (), **fields: Any) -> Episode:
    task = Task("t", payload={"pid": os.getpid()}, gold="7")
    return Episode(task, (Message.of("user", "?"), Message.of("assistant", text)), tuple(rewards), **fields)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def scorer_of(*rewards: Any, score_s: float = 5.0, weights: Sequence[float] = (), **fields: Any) -> Any:
    """A scorer of the given rewards (or "env"), named r0, r1, ...; `weights` gives each its weight."""
    names = ["env" if r == "env" else f"r{i}" for i, r in enumerate(rewards)]
    parts = [RewardConfig(*each) for each in zip(names, weights or [1.0] * len(rewards), strict=True)]
    return make_scorer(parts, lambda id: rewards[int(id[1:])], timeouts=Timeouts(score_s=score_s), **fields)


def score(*rewards: Any, of: Episode | None = None, **fields: Any) -> Score:
    return run(scorer_of(*rewards, **fields).score(of or episode()))


def giving(value: Any, range: tuple[float, float] = (0.0, 1.0)) -> Any:
    return reward(range=range)(lambda episode: value)


def raising(error: BaseException) -> Any:
    def f(episode: Episode) -> float:
        raise error

    return reward()(f)


def test_the_environment_alone_scores_the_sum_of_its_step_rewards() -> None:
    got = score("env", of=episode(rewards=(0.25, 0.5)))
    assert got == Score(0.75, {"env": 0.75})


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-4, 4)), min_size=1, max_size=5))
def test_the_score_is_the_weighted_sum_of_the_parts(parts: list[tuple[float, float]]) -> None:
    def part(value: float) -> Any:
        async def f(episode: Episode) -> float:
            return value

        return reward(range=(-1, 1))(f)

    got = score(*(part(v) for v, _ in parts), weights=[w for _, w in parts])
    assert got.value == pytest.approx(sum(v * w for v, w in parts), abs=1e-9)
    assert got.parts == {f"r{i}": v for i, (v, _) in enumerate(parts)}


def test_sync_and_async_rewards_see_the_episode_and_their_options() -> None:
    @reward(range=(0, 10))
    def length(episode: Episode, factor: float = 1.0) -> float:
        return len(episode.final_text) * factor

    @reward(range=(0, 10))
    async def turns(episode: Episode, *, bonus: float) -> float:
        return episode.turns + bonus

    made = {"x/length": length, "x/turns": turns}
    parts = [RewardConfig("x/length", 2.0, {"factor": 0.5}), RewardConfig("x/turns", 1.0, {"bonus": 3.0})]
    got = run(make_scorer(parts, made.__getitem__, timeouts=Timeouts()).score(episode("four", turns=2)))
    assert got == Score(2 * 2.0 + 5.0, {"x/length": 2.0, "x/turns": 5.0})
    assert length.fn and length(episode("four"), factor=2) == 8, "a reward can be called as it was written"


def test_a_blocking_reward_runs_off_the_event_loop() -> None:
    @reward(range=(0, math.inf))
    def thread(episode: Episode) -> float:
        return float(threading.get_ident())

    assert score(thread).value != threading.get_ident()


@pytest.mark.parametrize(
    ("part", "kind", "retry"),
    [
        (raising(ZeroDivisionError("by zero")), "reward_raised", False),
        (raising(StopIteration()), "reward_raised", False),
        (raising(SystemExit(1)), "reward_raised", False),
        (raising(asyncio.CancelledError()), "reward_raised", False),
        (raising(TimeoutError()), "reward_timeout", False),
        (raising(GoldError("empty")), "bad_gold", False),
        (raising(GraderError("judge down")), "grader_lost", True),
        (raising(SandboxError("gone")), "sandbox_failed", True),
        (giving(math.nan), "reward_nan", False),
        (giving(np.float32("nan")), "reward_nan", False),
        (giving(1.1), "reward_range", False),
        (giving(-0.001), "reward_range", False),
        (giving(math.inf, (0, math.inf)), "reward_range", False),
        (giving("1"), "reward_type", False),
        (giving([1.0]), "reward_type", False),
        (giving(1j), "reward_type", False),
        (giving({}), "reward_type", False),
        (giving({1: 0.5}), "reward_type", False),
        (giving({"a": 0.5, "b": 2.0}), "reward_range", False),
        (giving({"a": math.nan}), "reward_nan", False),
    ],
)
def test_a_reward_that_fails_makes_the_score_none_and_says_why(part: Any, kind: str, retry: bool) -> None:
    got = score("env", part, of=episode(rewards=(1.0,)))
    assert got.value is None
    assert got.parts == {"env": 1.0, "r1": None}
    assert got.failure is not None
    assert (got.failure.kind, got.failure.boundary, got.failure.retry) == (kind, "reward.r1", retry)


def test_an_async_reward_that_ends_the_program_or_cancels_itself_is_one_episodes_failure() -> None:
    @reward()
    async def leaves(episode: Episode) -> float:
        raise SystemExit(2)

    @reward()
    async def cancels(episode: Episode) -> float:
        raise asyncio.CancelledError

    class Panic(BaseException):
        """As PyO3 raises for a panic in Rust."""

    @reward()
    async def panics(episode: Episode) -> float:
        raise Panic

    for part in (leaves, cancels, panics):
        failure = score(part).failure
        assert failure and failure.kind == "reward_raised"


@pytest.mark.parametrize("value", [0, 1, True, np.float64(1.0), np.int64(0), np.bool_(True), 1 + 1e-12, -1e-12])
def test_what_is_a_number_within_the_range(value: Any) -> None:
    got = score(giving(value)).value
    assert type(got) is float and 0.0 <= got <= 1.0


def test_the_environments_part_has_its_own_range() -> None:
    assert score("env", of=episode(rewards=(1.0, 1.0)), range_of_env=(-3, 3)).value == 2.0
    outside = score("env", of=episode(rewards=(1.0, 1.0)))
    assert outside.failure and (outside.failure.kind, outside.failure.boundary) == ("reward_range", "reward.env")


def test_a_part_that_is_none_makes_the_score_none_without_a_failure() -> None:
    assert score("env", giving(None), of=episode(rewards=(1.0,))) == Score(None, {"env": 1.0, "r1": None})


def test_a_dict_is_the_sum_of_its_keys_and_each_is_kept() -> None:
    got = score(giving({"form": 0.5, "style": 1.0}), weights=[2.0])
    assert got == Score(3.0, {"r0": 1.5, "r0.form": 0.5, "r0.style": 1.0})
    assert score(giving({"form": 0.5, "style": None})) == Score(None, {"r0": None, "r0.form": 0.5, "r0.style": None})


def test_flags_of_the_episode_become_flags_of_the_score() -> None:
    assert score("env", of=episode(info={"flags": ["grader_timeout"]})).flags == ("grader_timeout",)


def test_a_grader_that_computes_too_long_counts_as_a_wrong_answer() -> None:
    @reward(range=(-1, 1))
    def slow(episode: Episode) -> float:
        raise GraderTimeout("twice")

    assert score(slow) == Score(-1.0, {"r0": -1.0}, flags=("grader_timeout",))
    assert score(slow, weights=[-2.0]) == Score(-2.0, {"r0": 1.0}, flags=("grader_timeout",))


# ---- time ------------------------------------------------------------------------------------------------
def test_a_blocking_reward_that_hangs_is_abandoned_and_counted() -> None:
    release, ended = threading.Event(), threading.Event()

    @reward()
    def hangs(episode: Episode) -> float:
        release.wait(30)
        ended.set()
        return 1.0

    before = abandoned_threads()
    got = score(hangs, score_s=0.05)
    assert got.failure and got.failure.kind == "reward_timeout"
    assert abandoned_threads() == before + 1
    release.set()
    assert ended.wait(30)
    for thread in threading.enumerate():
        if thread.name == "tunix-reward":
            thread.join(30)
    assert abandoned_threads() == before


def test_no_more_threads_hang_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunix_core.rewards.threads.MOST_ABANDONED", 1)
    release = threading.Event()
    hangs = reward()(lambda episode: float(release.wait(30)))
    assert score(hangs, score_s=0.05).failure.kind == "reward_timeout"  # type: ignore[union-attr]
    failure = score(giving(1.0)).failure
    assert failure and failure.kind == "reward_raised" and "cpu_bound=True" in failure.message
    release.set()
    for thread in threading.enumerate():
        if thread.name == "tunix-reward":
            thread.join(30)
    assert score(giving(1.0)).value == 1.0


def test_an_async_reward_that_hangs_is_cancelled() -> None:
    cancelled = []

    @reward()
    async def hangs(episode: Episode) -> float:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return 1.0

    got = score(hangs, score_s=0.05)
    assert got.failure and got.failure.kind == "reward_timeout" and cancelled


async def _while_the_loop_is_busy(coroutine: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.4)  # noqa: ASYNC251 - the loop being late is what is tested
    return await task


def test_a_late_event_loop_is_not_the_rewards_time() -> None:
    @reward()
    def quick(episode: Episode) -> float:
        return 1.0

    @reward()
    async def waits(episode: Episode) -> float:
        await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        return 1.0

    for part in (quick, waits):
        got = run(_while_the_loop_is_busy(scorer_of(part, score_s=0.2).score(episode())))
        assert got.value == 1.0, got.failure


def test_cancelling_the_score_cancels_the_reward() -> None:
    ended = []

    @reward()
    async def waits(episode: Episode) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return 1.0

    async def cancel() -> None:
        task = asyncio.ensure_future(scorer_of(waits).score(episode()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cancel())
    assert ended == [True]


# ---- workers ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def judged() -> Any:
    file = Path(__file__).with_name("grader_targets.py")
    spec = importlib.util.spec_from_file_location("grader_targets_of_scorer", file)
    assert spec and spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.judged


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    pool = WorkerPool(1)
    yield pool
    pool.close()


def test_a_cpu_bound_reward_runs_in_a_worker_process(judged: Any, workers: WorkerPool) -> None:
    parts = [RewardConfig("x/judged", options={"bonus": 0.5})]
    scorer = make_scorer(parts, lambda _: judged, timeouts=Timeouts(), workers=workers)
    assert run(scorer.score(episode("fine", sandbox=threading.Lock()))) == Score(0.5, {"x/judged": 0.5})


@pytest.mark.parametrize(
    ("text", "value", "kind", "flags"),
    [
        ("spin", -1.0, None, ("grader_timeout",)),
        ("die", None, "grader_lost", ()),
        ("gold", None, "bad_gold", ()),
    ],
)
def test_what_becomes_of_a_graders_failures(
    judged: Any, workers: WorkerPool, text: str, value: float | None, kind: str | None, flags: tuple[str, ...]
) -> None:
    got = score(judged, of=episode(text), workers=workers)
    assert (got.value, got.failure and got.failure.kind, got.flags) == (value, kind, flags)


def test_a_failure_in_a_worker_names_the_graders_line(judged: Any, workers: WorkerPool) -> None:
    failure = score(judged, of=episode("slip"), workers=workers).failure
    lines = Path(__file__).with_name("grader_targets.py").read_text().splitlines()
    place = 1 + next(number for number, line in enumerate(lines) if '["answer"]' in line)
    assert failure and failure.message == f"KeyError: 'answer' (grader_targets.py:{place})"


def test_an_episode_that_does_not_pickle_is_the_rewards_failure(judged: Any, workers: WorkerPool) -> None:
    got = score(judged, of=episode(info={"lock": threading.Lock()}), workers=workers)
    assert got.failure and got.failure.kind == "reward_raised" and "pickle" in got.failure.message


# ---- groups ----------------------------------------------------------------------------------------------
@group_reward(range=(0, 1))
def shortest(episodes: Sequence[Episode], share: float = 1.0) -> list[float]:
    least = min(len(e.final_text) for e in episodes)
    return [share * (len(e.final_text) == least) for e in episodes]


def score_group(texts: Sequence[str], *rewards: Any, **fields: Any) -> list[Score]:
    scorer, episodes = scorer_of(*rewards, **fields), [episode(text) for text in texts]

    async def both() -> list[Score]:
        return list(await scorer.score_group(episodes, [await scorer.score(e) for e in episodes]))

    return run(both())


def test_a_group_reward_is_added_to_what_each_episode_has() -> None:
    got = score_group(["aaa", "a", "aa"], giving(1.0), shortest, weights=[1.0, 0.5])
    assert [s.value for s in got] == [1.0, 1.5, 1.0]
    assert got[1].parts == {"r0": 1.0, "r1": 1.0}


def test_a_group_reward_sees_only_members_that_have_a_score() -> None:
    fails_on_a = reward()(lambda episode: None if episode.final_text == "a" else 0.0)
    got = score_group(["aaa", "a", "aa"], fails_on_a, shortest)
    assert [s.value for s in got] == [0.0, None, 1.0]
    assert score_group(["a"], giving(None), shortest)[0].value is None


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (lambda episodes: [1.0], "reward_type"),
        (lambda episodes: 1.0, "reward_type"),
        (lambda episodes: "ab", "reward_type"),
        (lambda episodes: [2.0, 0.0], "reward_range"),
        (lambda episodes: 1 / 0, "reward_raised"),
    ],
)
def test_a_group_reward_that_fails_leaves_the_whole_group_without_a_score(part: Callable[..., Any], kind: str) -> None:
    got = score_group(["a", "b"], giving(1.0), group_reward()(part))
    assert [s.value for s in got] == [None, None]
    assert {s.failure.kind for s in got if s.failure} == {kind}


def test_a_group_reward_may_leave_one_member_out() -> None:
    got = score_group(["a", "b"], group_reward()(lambda episodes: [None, 1.0]))
    assert [s.value for s in got] == [None, 1.0]
    assert got[0].failure is None


# ---- what is refused -------------------------------------------------------------------------------------
def nested() -> Any:
    @reward(cpu_bound=True)
    def inner(episode: Episode) -> float:
        return 1.0

    return inner


optional = reward()(lambda episode, factor=1: 1.0)


@pytest.mark.parametrize(
    ("parts", "found", "message"),
    [
        ([], None, "nothing to score"),
        ([RewardConfig("env", options={"x": 1})], None, "takes no options"),
        ([RewardConfig("a"), RewardConfig("env"), RewardConfig("a", 2.0)], giving(1.0), "lists a more than once"),
        ([RewardConfig("a", math.nan)], giving(1.0), "finite"),
        ([RewardConfig("a")], lambda episode: 1.0, "decorated with @reward"),
        (
            [RewardConfig("a", options={"fctor": 1})],
            optional,
            "Did you mean 'factor'",
        ),
        ([RewardConfig("a")], reward()(lambda e, *, needed: 1.0), "needed"),
        ([RewardConfig("a")], nested(), "top level"),
    ],
)
def test_a_part_that_can_not_be_used_is_refused_at_once(parts: list[RewardConfig], found: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_scorer(parts, lambda _: found, timeouts=Timeouts())


@pytest.mark.parametrize("range", [(1, 0), (1, 1), (math.nan, 1), (0,)])
def test_a_range_must_go_from_lowest_to_highest(range: Any) -> None:
    with pytest.raises(ValueError, match="lowest < highest"):
        reward(range=range)
    with pytest.raises(ValueError, match="lowest < highest"):
        group_reward(range=range)


def test_an_async_reward_can_not_be_cpu_bound() -> None:
    async def f(episode: Episode) -> float:
        return 1.0

    with pytest.raises(TypeError, match="async and cpu_bound"):
        reward(cpu_bound=True)(f)
