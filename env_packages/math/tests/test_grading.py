from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tunix_env_math.grading import grade, readable_golds, verify

from tunix_core.config import RewardConfig
from tunix_core.rewards import Episode, GraderTimeout, WorkerPool, make_scorer
from tunix_core.specs import Timeouts
from tunix_core.testing.rewards import check_reward
from tunix_core.types import Message, Score, Task

CASES = [json.loads(line) for line in Path(__file__).with_name("math_cases.jsonl").read_text().splitlines()]
QUICK = [case for case in CASES if case["verdict"] != "not_correct_in_time"]
ENDLESS = [case for case in CASES if case["verdict"] == "not_correct_in_time"]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(1)
    yield pool
    pool.close()


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case['gold']}|{case['response']}")
def test_the_verdict(case: dict[str, str]) -> None:
    assert grade(case["gold"], case["response"]) == case["verdict"]


@pytest.mark.parametrize("case", ENDLESS, ids=lambda case: case["response"])
def test_an_answer_that_computes_for_ever_is_never_correct_and_never_hangs(
    case: dict[str, str], pool: WorkerPool
) -> None:
    try:
        verdict = pool.call("tunix_env_math.grading:grade", case["gold"], case["response"], cpu_s=0.5, wall_s=30.0)
    except GraderTimeout:
        verdict = "timeout"
    assert verdict in ("timeout", "incorrect", "unparsable")


def test_every_gold_that_is_bad_is_found_at_once() -> None:
    golds = [case["gold"] for case in QUICK]
    assert readable_golds(golds) == [case["verdict"] != "bad_gold" for case in QUICK]


def episode(gold: object, text: str) -> Episode:
    return Episode(Task("t", gold=gold), (Message.of("assistant", text),))


def score(pool: WorkerPool, of: Episode) -> Score:
    scorer = make_scorer([RewardConfig("math/verify")], lambda _: verify, timeouts=Timeouts(), workers=pool)
    return asyncio.run(scorer.score(of))


def test_the_reward_runs_in_a_worker_and_keeps_its_promises(pool: WorkerPool) -> None:
    assert score(pool, episode("1/2", r"\boxed{0.5}")).value == 1.0
    assert score(pool, episode(7, "8")).value == 0.0
    assert score(pool, episode("7", "no idea")).value == 0.0
    bad = score(pool, episode("", "8"))
    assert bad.value is None and bad.failure and bad.failure.kind == "bad_gold"


def test_the_public_check_accepts_the_reward() -> None:
    scores = check_reward(verify, [episode("2", "2"), episode("2", "3")])
    assert [s.value for s in scores] == [1.0, 0.0]
