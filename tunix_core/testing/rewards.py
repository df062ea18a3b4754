"""A public check of rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tunix_core.config import RewardConfig
from tunix_core.contracts import Episode
from tunix_core.rewards import GroupReward, Reward, make_scorer
from tunix_core.specs import Timeouts
from tunix_core.types import Score


def check_reward(
    reward: Reward | GroupReward, episodes: Sequence[Episode], *, timeouts: Timeouts | None = None, **options: Any
) -> list[Score]:
    """Checks that a reward keeps its promises on these episodes: it doesn't fail, it stays within its
    range, it gives numbers or None, and the same again when asked again.

    Args:
        reward: what `@reward` or `@group_reward` made.
        episodes: what to score; a group reward sees them as one group.
        timeouts: `score_s` bounds each call.
        options: the reward's.

    Returns:
        The scores, one per episode, to look at their values.

    Raises:
        AssertionError: a promise is broken; the message says which, and on which episode.
        UsageError: it isn't a reward, or doesn't take these options.
    """
    assert episodes, "check_reward needs at least one episode"
    scorer = make_scorer([RewardConfig("reward", options=options)], lambda _: reward, timeouts=timeouts or Timeouts())

    async def score_all() -> list[Score]:
        scores = [await scorer.score(episode) for episode in episodes]
        return list(await scorer.score_group(episodes, scores))

    first, again = asyncio.run(score_all()), asyncio.run(score_all())
    for index, (one, other) in enumerate(zip(first, again, strict=True)):
        where = f"on episode {index} (task {episodes[index].task.id!r})"
        assert one.failure is None, f"{where}: {one.failure}"
        assert one.parts == other.parts, f"{where}: gave {one.parts}, then {other.parts}; a reward must not vary"
    return first
