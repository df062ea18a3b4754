"""Environments: the classes to subclass, the Gymnasium bridge, and the wall around a running one.

Gives an `EnvOpener` per suite. Does not know the policy, tokens or training.
"""

from tunix_core.envs.base import BaseTaskEnv, EnvStepResult
from tunix_core.envs.drive import accepted
from tunix_core.envs.messages import to_messages
from tunix_core.envs.opener import make_opener
from tunix_core.envs.task import TaskEnvironment
from tunix_core.envs.tool import ToolEnvironment

__all__ = [
    "BaseTaskEnv",
    "EnvStepResult",
    "TaskEnvironment",
    "ToolEnvironment",
    "accepted",
    "make_opener",
    "to_messages",
]
