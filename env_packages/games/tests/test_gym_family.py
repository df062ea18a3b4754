"""The family gym/*: four environments played, and the reasons others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tunix_env_games.gym import GymnasiumEnv, make_tasks, members
from tunix_env_games.plugin import GYM

from tunix_core.envs.gymnasium import as_text, check_gymnasium, last_action
from tunix_core.errors import UsageError
from tunix_core.testing.envs import check_env

TRIED = {
    "Taxi-v4": ["south", "NORTH", "east", "west", "pickup", "dropoff", "3"],
    "CliffWalking-v1": ["up", "right", "down", "left", "0"],
    "Blackjack-v1": ["hit", "stick", "1"],
    "CartPole-v1": ["left", "right", "0", "1"],
}


def opened(name: str, seed: int = 5, **options: Any) -> tuple[GymnasiumEnv, str]:
    env = GymnasiumEnv(make_tasks("train", 0, name=name).get(0), **options)
    return env, env.reset(seed=seed)[0]


def trace(name: str, seed: int) -> list[Any]:
    env, observation = opened(name, seed)
    seen: list[Any] = [observation]
    for action in TRIED[name]:
        result = env.step(action)
        assert "invalid_action" not in result.info
        seen.append((result.observation, result.reward, result.terminated, result.truncated))
        if result.done:
            break
    env.close()
    return seen


@pytest.mark.parametrize("name", TRIED)
def test_each_is_played_by_names_and_numbers_and_repeats_with_its_seed(name: str) -> None:
    assert trace(name, 3) == trace(name, 3)
    if name != "CliffWalking-v1":  # it has one start and no chance
        assert len({str(trace(name, seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize("name", TRIED)
def test_each_keeps_what_every_environment_promises(name: str) -> None:
    check_env(GYM, n=2, options={"name": name}, max_steps=12)


def test_the_first_message_names_the_game_and_its_actions() -> None:
    env, observation = opened("Blackjack-v1")
    title, shown = observation.split("\n")
    assert title == "Blackjack-v1. Answer stick or hit."
    assert len(shown.split()) == 3 and all(part.isdigit() for part in shown.split())
    env.close()


def test_it_plays_as_gymnasium_does() -> None:
    env, _ = opened("CartPole-v1", seed=9)
    own = gymnasium.make("CartPole-v1")
    own.reset(seed=9)
    for _ in range(30):
        observation, reward, terminated, truncated, _ = own.step(1)
        result = env.step("right")
        assert result.observation == as_text(observation, own.observation_space)
        assert (result.reward, result.terminated, result.truncated) == (reward, terminated, truncated)
        if terminated:
            break
    assert terminated
    own.close()
    env.close()


def test_gymnasiums_own_time_limit_is_truncation() -> None:
    env, _ = opened("CartPole-v1", make={"max_episode_steps": 2})
    env.step("left")
    result = env.step("right")
    assert (result.terminated, result.truncated, result.info["truncated_by"]) == (False, True, "time_limit")
    env.close()


def test_an_answer_without_an_action_costs_a_turn_and_moves_nothing() -> None:
    env, observation = opened("CliffWalking-v1", max_steps=2)
    assert observation.endswith("\n36")
    first, second = env.step("fly"), env.step("7")
    assert first.observation == second.observation == "Answer up, right, down or left."
    assert not first.done and second.info["truncated_by"] == "max_steps"
    env.close()


def test_a_step_off_the_cliff_costs_what_gymnasium_says() -> None:
    env, _ = opened("CliffWalking-v1")
    assert env.step("right").reward == -100.0
    env.close()


def test_names_of_ones_own_and_numbers_where_none_are_known() -> None:
    env, observation = opened("CartPole-v1", actions=("West", "East"))
    assert "Answer West or East." in observation
    assert "invalid_action" not in env.step("east").info
    env.close()
    gymnasium.register("TunixNumbered-v0", entry_point=Numbered)
    try:
        env, observation = opened("TunixNumbered-v0")
        assert observation == "TunixNumbered-v0. Answer a number from 0 to 2.\nhello"
        assert env.step("1 then 2").observation == "12"
        env.close()
    finally:
        del gymnasium.registry["TunixNumbered-v0"]


class Numbered(gymnasium.Env[str, int]):
    """Actions 10, 11 and 12; says which was taken."""

    action_space = spaces.Discrete(3, start=10)
    observation_space = spaces.Text(10)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "hello", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return str(action), 0.0, False, False, {}


class Camera(Numbered):
    """Shows an image."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)  # type: ignore[assignment]


class Needy(Numbered):
    """Needs what isn't installed."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("No module named 'atari_parts'", name="atari_parts.roms")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Pendulum-v1", r"its actions are Box.*only Discrete actions"),
        ("CartPol-v1", r"no 'CartPol-v1'\. Did you mean 'CartPole-v1'"),
        ("Taxi-v1", r"Did you mean .*'Taxi-v4'"),
        ("LunarLander-v3", r"needs a package that isn't installed.*pip install"),
        ("TunixCamera-v0", r"an image of 192 numbers, and at most 64"),
        ("TunixNeedy-v0", r"needs a package.*Try: pip install atari_parts$"),
        ("no_such_module:Thing-v0", r"Try: pip install no_such_module$"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(name: str, reason: str) -> None:
    gymnasium.register("TunixCamera-v0", entry_point=Camera)
    gymnasium.register("TunixNeedy-v0", entry_point=Needy)
    try:
        with pytest.raises(UsageError, match=reason):
            make_tasks("train", 0, name=name)
    finally:
        del gymnasium.registry["TunixCamera-v0"], gymnasium.registry["TunixNeedy-v0"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"actions": ["left"]}, "has 2 actions"),
        ({"actions": ["go", "Go"]}, "must name each of them once"),
        ({"make": {"colour": 1}}, "can't make 'CartPole-v1' with"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        check_gymnasium("CartPole-v1", **options)


def test_members_are_the_newest_of_what_can_be_played() -> None:
    names = members()
    assert {*TRIED, "Acrobot-v1", "FrozenLake-v1", "MountainCar-v0"} <= set(names)
    assert not {"CartPole-v0", "Pendulum-v1", "HalfCheetah-v5", "CarRacing-v3", "Ant-v2"} & set(names)
    for name in names:
        check_gymnasium(name)


def test_tasks_of_the_splits_differ_by_name_and_so_in_their_seeds() -> None:
    train, evaluation = (make_tasks(split, 0, name="CartPole-v1") for split in ("train", "eval"))  # type: ignore[arg-type]
    assert not {train.get(i).id for i in range(50)} & {evaluation.get(i).id for i in range(50)}


@given(st.text(), st.integers(0, 5))
def test_any_text_is_an_action_or_none(text: str, count: int) -> None:
    found = last_action(text, {"up": 0, "down": 1}, count)
    assert found is None or 0 <= found < max(2, count)


@pytest.mark.parametrize(
    ("text", "action"),
    [("up 2", 2), ("2 up", 0), ("0.5", None), ("-1", None), ("3", None), ("9" * 30, None), ("2.", 2), ("x2", None)],
)
def test_numbers_stand_alone_and_in_range(text: str, action: int | None) -> None:
    assert last_action(text, {"up": 0, "down": 1}, 3) == action
