"""The lake: what is shown, what is understood, how it ends; and that held-out lakes are unseen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunix_env_games.frozen_lake import ACTIONS, FrozenLake, find_path, make_tasks, shortest_path, split_of
from tunix_env_games.plugin import FROZEN_LAKE

from tunix_core import Message, StepResult, Task
from tunix_core.testing.envs import check_env
from tunix_core.types import Opening

ROWS = ["SFFF", "FHFH", "FFFH", "HFFG"]
FIRST = "Lake: reach G, avoid O. Answer up, down, left or right.\nP . . .\n. O . O\n. . . O\nO . . G"


def opened(rows: Sequence[str] = ROWS, seed: int = 0, **options: Any) -> tuple[FrozenLake, str]:
    env = FrozenLake({"map": list(rows)}, **options)
    observation, _ = env.reset(seed=seed)
    return env, observation


def played(env: FrozenLake, actions: Sequence[str]) -> list[StepResult]:
    try:
        return [env.step(action) for action in actions]
    finally:
        env.close()


def test_the_first_message_is_a_line_and_the_lake_and_the_next_the_lake_alone() -> None:
    env, observation = opened()
    assert observation == FIRST
    (result,) = played(env, ["right"])
    assert result == StepResult(". P . .\n. O . O\n. . . O\nO . . G")


def test_reaching_the_goal_scores_one_and_terminates() -> None:
    env, _ = opened()
    *before, last = played(env, ["down", "down", "right", "down", "right", "right"])
    assert (last.reward, last.terminated, last.truncated, last.info) == (1.0, True, False, {"outcome": "goal"})
    assert not any(result.done or result.reward for result in before)


def test_a_hole_scores_nothing_and_terminates() -> None:
    env, _ = opened()
    last = played(env, ["down", "right"])[-1]
    assert (last.reward, last.terminated, last.truncated, last.info) == (0.0, True, False, {"outcome": "hole"})


def test_running_out_of_turns_is_truncation_and_says_so() -> None:
    env, _ = opened(max_steps=3)
    first, _, last = played(env, ["up"] * 3)
    assert not first.done
    assert (last.terminated, last.truncated, last.info["truncated_by"]) == (False, True, "max_steps")


def test_the_goal_on_the_last_turn_is_reached_and_not_cut() -> None:
    env, _ = opened(max_steps=6)
    last = played(env, shortest_path(ROWS))[-1]
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)


@pytest.mark.parametrize(
    ("said", "position"),
    [
        ("right", 1),
        ("DOWN!", 4),
        ("up? no: down", 4),
        ("I'd go right.", 1),
        ("r", 1),
        ("Answer: D", 4),
        ("go left", 0),
        ("rightdown", None),
        ("upright", None),
        ("", None),
        ("I'd", None),
        ("2", None),
    ],
)
def test_the_last_direction_named_is_taken(said: str, position: int | None) -> None:
    env, _ = opened()
    (result,) = played(env, [said])
    assert ("invalid_action" in result.info) == (position is None)
    assert env.position == (position or 0)


def test_an_answer_without_a_direction_costs_a_turn_and_says_what_is_expected() -> None:
    env, _ = opened(max_steps=2)
    first, second = played(env, ["hm", "hm"])
    assert first.observation == FIRST.removeprefix("Lake: reach G, avoid O. ")
    assert not first.done and second.truncated


def test_whatever_is_said_is_an_observation() -> None:
    env, _ = opened(["SFFF", "FFFF", "FFFF", "FFFG"], max_steps=1000)

    @given(st.text())
    def say(text: str) -> None:
        assert env.step(text).observation.count("\n") >= 3

    say()
    env.close()


def test_the_same_seed_gives_the_same_episode_also_on_slippery_ice() -> None:
    def trace(seed: int) -> list[Any]:
        env, observation = opened(["SFFFFF"] * 1 + ["FFFFFF"] * 4 + ["FFFFFG"], seed, slippery=True, max_steps=20)
        return [observation, *(result.observation for result in played(env, ["right", "down"] * 5))]

    assert trace(3) == trace(3)
    assert len({tuple(trace(seed)) for seed in range(5)}) > 1


def test_ice_that_is_not_slippery_does_not_depend_on_the_seed() -> None:
    env, _ = opened(seed=11)
    assert played(env, shortest_path(ROWS))[-1].reward == 1.0


def one_direction(opening: Opening, rng: np.random.Generator) -> Message:
    return Message.of("assistant", str(rng.choice(list(ACTIONS))))


@pytest.mark.parametrize("slippery", [False, True])
def test_it_keeps_what_every_environment_promises(slippery: bool) -> None:
    check_env(FROZEN_LAKE, n=3, options={"slippery": slippery}, player=one_direction)
    check_env(FROZEN_LAKE, n=2, options={"slippery": slippery})


def test_reset_begins_anew_and_close_closes_once() -> None:
    env, first = opened()
    env.step("right")
    again, _ = env.reset(seed=0)
    assert again == first and env.position == 0 and env.step_count == 0
    env.close()
    env.close()


def test_the_payload_survives_json_and_the_environment_takes_it() -> None:
    task = make_tasks("train", 0).get(5)
    assert Task.from_json(task.to_json()) == task
    env = FrozenLake(task)
    assert env.reset(seed=1)[0].endswith("G")
    env.close()


# ---- tasks ---------------------------------------------------------------------------------------
@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 10**9))
def test_a_lake_is_a_function_of_split_seed_and_index_and_can_be_crossed(seed: int, index: int) -> None:
    task = make_tasks("train", seed).get(index)
    assert task == make_tasks("train", seed).get(index)
    assert find_path(task.payload["map"]) is not None
    assert task.split == split_of(task.payload["map"]) == "train"


def test_train_and_eval_share_no_lake_whatever_their_seeds() -> None:
    held_out = [make_tasks("eval", seed) for seed in (0, 1)]
    unseen = {tuple(source.get(i).payload["map"]) for source in held_out for i in range(len(source))}  # type: ignore[arg-type]
    seen = {tuple(make_tasks("train", seed).get(i).payload["map"]) for seed in (0, 1) for i in range(500)}
    assert len(unseen) >= 200 and len(seen) >= 200
    assert not unseen & seen


def test_held_out_lakes_are_at_least_200_and_all_differ() -> None:
    source = make_tasks("eval", 7)
    tasks = [source.get(i) for i in range(len(source))]  # type: ignore[arg-type]
    assert len(tasks) >= 200
    assert max(Counter(tuple(task.payload["map"]) for task in tasks).values()) == 1
    assert len({task.id for task in tasks}) == len(tasks)
    again = make_tasks("eval", 7)
    assert tasks == [again.get(i) for i in range(len(tasks))]


def test_seeds_and_indices_give_other_lakes() -> None:
    first = [make_tasks("train", 0).get(i).payload["map"] for i in range(20)]
    other = [make_tasks("train", 1).get(i).payload["map"] for i in range(20)]
    assert first != other and len({tuple(rows) for rows in first}) > 10


@pytest.mark.parametrize("options", [{"size": 1}, {"holes": 0.9}, {"holes": -0.1}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="size must be at least 2 and holes in"):
        make_tasks("train", 0, **options)


def test_a_split_without_any_lake_says_so() -> None:
    with pytest.raises(ValueError, match="no lake of size=4 with holes=0"):
        make_tasks("eval", 0, holes=0.0)


# ---- the expert, and chance --------------------------------------------------------------------
def test_the_expert_reaches_the_goal_of_every_lake_within_the_turns() -> None:
    source = make_tasks("train", 3)
    for index in range(50):
        env = FrozenLake(source.get(index), max_steps=FROZEN_LAKE.max_turns)
        env.reset(seed=index)
        assert played(env, shortest_path(env.rows))[-1].reward == 1.0


def test_the_expert_finds_its_way_from_anywhere_or_says_there_is_none() -> None:
    assert shortest_path(ROWS) == ["down", "down", "right", "down", "right", "right"]
    assert shortest_path(ROWS, 15) == []
    assert shortest_path(ROWS, 13) == ["right", "right"]
    with pytest.raises(ValueError, match="no way from cell 0"):
        shortest_path(["SH", "HG"])


def chance(rows: Sequence[str], turns: int) -> float:
    """The probability that words drawn uniformly reach the goal within `turns`, exactly."""
    size = len(rows)
    alive = np.zeros((size, size))
    alive[0, 0], reached = 1.0, 0.0
    ice = np.array([[cell in "SF" for cell in row] for row in rows])
    for _ in range(turns):
        padded = np.pad(alive, 1)
        moved = sum(np.roll(padded, shift, axis)[1:-1, 1:-1] for shift in (1, -1) for axis in (0, 1)) / 4
        moved[0] += alive[0] / 4  # a step against the wall stays
        moved[-1] += alive[-1] / 4
        moved[:, 0] += alive[:, 0] / 4
        moved[:, -1] += alive[:, -1] / 4
        reached += moved[-1, -1]
        alive = moved * ice
    return reached


def test_the_chance_score_is_what_random_words_get() -> None:
    source = make_tasks("train", 0)
    mean = np.mean([chance(source.get(i).payload["map"], FROZEN_LAKE.max_turns) for i in range(500)])
    assert FROZEN_LAKE.chance_score == round(mean, 3)


def test_chance_agrees_with_episodes_played() -> None:
    rows, rng, reached, episodes = ["SF", "FG"], np.random.default_rng(0), 0.0, 400
    env = FrozenLake({"map": rows}, max_steps=3)
    for seed in range(episodes):
        env.reset(seed=seed)
        result = StepResult()
        while not result.done:
            result = env.step(str(rng.choice(list(ACTIONS))))
        reached += result.reward
    env.close()
    assert abs(reached / episodes - chance(rows, 3)) < 0.08
