"""One frozen tree from TOML.

`load_config` reads a file and `-o` overrides into a RunConfig; an unknown key or a wrong type is a
ConfigError with its line and a "did you mean". `dump_config` writes it back.
"""

from tunix_core.config.dump import dump_config
from tunix_core.config.loader import load_config, parse_value
from tunix_core.config.tree import (
    AxesConfig,
    CheckpointConfig,
    CreditConfig,
    CurriculumConfig,
    EngineConfig,
    EvalConfig,
    LoraConfig,
    MeshConfig,
    PluginsConfig,
    ProfilingConfig,
    RewardConfig,
    RunConfig,
    SandboxConfig,
    SchedulerConfig,
    SuiteConfig,
    TimeoutsConfig,
    TrainerConfig,
)

__all__ = [
    "AxesConfig",
    "CheckpointConfig",
    "CreditConfig",
    "CurriculumConfig",
    "EngineConfig",
    "EvalConfig",
    "LoraConfig",
    "MeshConfig",
    "PluginsConfig",
    "ProfilingConfig",
    "RewardConfig",
    "RunConfig",
    "SandboxConfig",
    "SchedulerConfig",
    "SuiteConfig",
    "TimeoutsConfig",
    "TrainerConfig",
    "dump_config",
    "load_config",
    "parse_value",
]
