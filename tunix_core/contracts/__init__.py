"""The Protocols the rooms know each other by.

Contracts are nouns; an implementation's name says its difference. Arrays of the accelerator are
`Any` here, so that this never loads JAX.
"""

from __future__ import annotations

from tunix_core.contracts.acting import (
    Curriculum,
    EnvHandle,
    EnvOpener,
    Episode,
    ExecResult,
    Network,
    Sandbox,
    Sandboxes,
    SandboxLimits,
    SandboxRequest,
    Scorer,
    Shell,
    TaskSource,
)
from tunix_core.contracts.inference import (
    Cache,
    ChatFormat,
    Completion,
    Engine,
    GenerateRequest,
    Model,
    Params,
    Past,
    Policy,
    Remat,
    Rendering,
    RolloutRequest,
    Sampling,
    Tokenizer,
    Weights,
    WeightSource,
)
from tunix_core.contracts.learning import (
    Adapters,
    Adaptive,
    Algorithm,
    Critic,
    Layout,
    Learner,
    LossTerms,
    Outcome,
)
from tunix_core.contracts.observing import (
    Context,
    Hooks,
    Tracker,
)

__all__ = [
    "Adapters",
    "Adaptive",
    "Algorithm",
    "Cache",
    "ChatFormat",
    "Completion",
    "Context",
    "Critic",
    "Curriculum",
    "Engine",
    "EnvHandle",
    "EnvOpener",
    "Episode",
    "ExecResult",
    "GenerateRequest",
    "Hooks",
    "Layout",
    "Learner",
    "LossTerms",
    "Model",
    "Network",
    "Outcome",
    "Params",
    "Past",
    "Policy",
    "Remat",
    "Rendering",
    "RolloutRequest",
    "Sampling",
    "Sandbox",
    "SandboxLimits",
    "SandboxRequest",
    "Sandboxes",
    "Scorer",
    "Shell",
    "TaskSource",
    "Tokenizer",
    "Tracker",
    "WeightSource",
    "Weights",
]
