from __future__ import annotations

from collections.abc import Sequence

import pytest

from tunix_core.contracts import Episode
from tunix_core.rewards import group_reward, reward
from tunix_core.testing.rewards import check_reward
from tunix_core.types import Message, Task

EPISODES = [Episode(Task(f"t{i}"), (Message.of("assistant", "a" * i),)) for i in range(3)]


def test_a_good_reward_passes_and_its_scores_come_back() -> None:
    @reward(range=(0, 10))
    def length(episode: Episode, factor: float = 1.0) -> float:
        return factor * len(episode.final_text)

    assert [s.value for s in check_reward(length, EPISODES, factor=2.0)] == [0.0, 2.0, 4.0]


def test_a_good_group_reward_passes() -> None:
    @group_reward(range=(0, 1))
    async def longest(episodes: Sequence[Episode]) -> list[float]:
        most = max(len(e.final_text) for e in episodes)
        return [float(len(e.final_text) == most) for e in episodes]

    assert [s.value for s in check_reward(longest, EPISODES)] == [0.0, 0.0, 1.0]


def test_a_reward_outside_its_range_is_named_with_its_episode() -> None:
    bad = reward(range=(0, 1))(lambda episode: len(episode.final_text))
    with pytest.raises(AssertionError, match=r"episode 2 .*'t2'.*reward_range"):
        check_reward(bad, EPISODES)


def test_a_reward_that_varies_is_found() -> None:
    asked: list[int] = []

    @reward(range=(0, 100))
    def varies(episode: Episode) -> float:
        asked.append(1)
        return float(len(asked))

    with pytest.raises(AssertionError, match="must not vary"):
        check_reward(varies, EPISODES)


def test_no_episodes_check_nothing() -> None:
    with pytest.raises(AssertionError, match="at least one"):
        check_reward(reward()(lambda episode: 1.0), [])
