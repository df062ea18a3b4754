"""Scores a trajectory before its sandbox closes, then the group.

Takes an Episode; gives a Score. Does not know tokens, the policy or training.
"""

from tunix_core.contracts import Episode
from tunix_core.errors import GoldError, GraderError, RewardError
from tunix_core.rewards.definition import GroupReward, Reward, group_reward, reward
from tunix_core.rewards.scorer import make_scorer
from tunix_core.rewards.threads import abandoned_threads
from tunix_core.rewards.workers import (
    GraderTimeout,
    WorkerPool,
    close_shared_workers,
    grade_in_worker,
    grade_in_worker_async,
    shared_workers,
)

__all__ = [
    "Episode",
    "GoldError",
    "GraderError",
    "GraderTimeout",
    "GroupReward",
    "Reward",
    "RewardError",
    "WorkerPool",
    "abandoned_threads",
    "close_shared_workers",
    "grade_in_worker",
    "grade_in_worker_async",
    "group_reward",
    "make_scorer",
    "reward",
    "shared_workers",
]
