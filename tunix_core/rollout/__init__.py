"""One episode: the engine and an environment take turns until it ends; gives a Trajectory.

Loss mask, log-probability and policy version are decided here, where tokens are born. Does not
know groups, mixtures or training.
"""

from tunix_core.rollout.conversation import Conversation
from tunix_core.rollout.episode import Suite, run_episode

__all__ = ["Conversation", "Suite", "run_episode"]
