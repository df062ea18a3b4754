from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunix_rewards.plugin import SPECS, tunix_register_rewards
from tunix_rewards.rewards import concise, contains, exact_match, finished

from tunix_core.config import RewardConfig
from tunix_core.rewards import Episode, GoldError, make_scorer
from tunix_core.specs import Timeouts, load_target
from tunix_core.testing.rewards import check_reward
from tunix_core.types import Message, Task


def episode(text: str = "", gold: Any = "Paris", **fields: Any) -> Episode:
    return Episode(Task("t", gold=gold), (Message.of("assistant", text),), **fields)


@pytest.mark.parametrize(
    ("text", "options", "value"),
    [
        ("Paris", {}, 1.0),
        (" Paris\n", {}, 1.0),
        ("paris", {}, 0.0),
        ("paris", {"ignore_case": True}, 1.0),
        ("Paris.", {}, 0.0),
        ("", {}, 0.0),
    ],
)
def test_exact_match(text: str, options: dict[str, Any], value: float) -> None:
    assert exact_match(episode(text), **options) == value


def test_exact_match_takes_a_gold_that_is_a_number() -> None:
    assert exact_match(episode("7", gold=7)) == 1.0


@pytest.mark.parametrize(
    ("text", "options", "value"),
    [
        ("It is Paris.", {}, 1.0),
        ("It is Rome.", {}, 0.0),
        ("it is paris", {"ignore_case": True}, 1.0),
        ("thank you", {"text": "thank"}, 1.0),
        ("Paris", {"text": "thank"}, 0.0),
    ],
)
def test_contains(text: str, options: dict[str, Any], value: float) -> None:
    assert contains(episode(text), **options) == value


@pytest.mark.parametrize("gold", [None, "", "  "])
def test_a_missing_gold_is_a_bad_gold_not_a_match(gold: Any) -> None:
    for compared in (exact_match, contains):
        with pytest.raises(GoldError, match="no gold"):
            compared(episode("", gold=gold))


@pytest.mark.parametrize(("tokens", "value"), [(0, 1.0), (10, 1.0), (15, 0.5), (20, 0.0), (99, 0.0)])
def test_concise(tokens: int, value: float) -> None:
    assert concise(episode(sampled_tokens=tokens), target_tokens=10) == value


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_concise_never_rewards_more_tokens(tokens: int, target: int) -> None:
    fewer, more = (concise(episode(sampled_tokens=n), target_tokens=target) for n in (tokens, tokens + 1))
    assert 0.0 <= more <= fewer <= 1.0


def test_concise_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="target_tokens=0"):
        concise(episode(), target_tokens=0)


def test_finished() -> None:
    assert finished(episode(status="terminated")) == 1.0
    assert finished(episode(status="truncated", stop_reason="max_turns")) == 0.0


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_each_is_registered_and_keeps_its_promises_with_its_default_options(spec: Any) -> None:
    registered: list[Any] = []
    tunix_register_rewards(registered.append)
    assert spec in registered
    found = load_target(spec.target)
    options = {name: option.default for name, option in spec.options.items()}
    check_reward(found, [episode("Paris", sampled_tokens=100), episode("Rome", status="truncated")], **options)


def test_they_add_up_in_a_suite() -> None:
    by_id = {spec.id: load_target(spec.target) for spec in SPECS}
    parts = [
        RewardConfig("rewards/exact-match"),
        RewardConfig("rewards/concise", 0.5, {"target_tokens": 10}),
        RewardConfig("rewards/finished", 0.25),
    ]
    scorer = make_scorer(parts, by_id.__getitem__, timeouts=Timeouts())
    score = asyncio.run(scorer.score(episode("Paris", sampled_tokens=15)))
    assert score.value == 1.5
    assert score.parts == {"rewards/exact-match": 1.0, "rewards/concise": 0.5, "rewards/finished": 1.0}
