"""Tunix Core: a hub of environments and plugins, and an asynchronous trainer that learns on them.

The names here are what a plugin needs to describe itself. Importing this never loads JAX.
"""

from tunix_core.hookspecs import hookimpl
from tunix_core.specs import (
    AlgorithmSpec,
    CurriculumSpec,
    EngineSpec,
    EnvSpec,
    ModelSpec,
    Option,
    RewardSpec,
    SandboxSpec,
    Timeouts,
    ToolSpec,
    TrackerSpec,
)
from tunix_core.types import Message, StepResult, Task, ToolCall

__version__ = "0.1.0"

__all__ = [
    "AlgorithmSpec",
    "CurriculumSpec",
    "EngineSpec",
    "EnvSpec",
    "Message",
    "ModelSpec",
    "Option",
    "RewardSpec",
    "SandboxSpec",
    "StepResult",
    "Task",
    "Timeouts",
    "ToolCall",
    "ToolSpec",
    "TrackerSpec",
    "__version__",
    "hookimpl",
]
