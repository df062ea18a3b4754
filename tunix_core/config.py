"""One frozen tree from TOML.

The dataclasses below are the whole configuration; `load_config` reads a file and `-o` overrides
into it. An unknown key or a wrong type is a ConfigError with its line and a "did you mean".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tunix_core.contracts import Sampling
from tunix_core.specs import Isolation, Timeouts


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """One part of a suite's score: a reward's id (or "env"), its weight and options."""

    id: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuiteConfig:
    """One suite: an environment, how much of it, how it is sampled and scored."""

    env: str  # the environment's id, e.g. "games/frozen-lake"
    name: str = ""  # names it in metrics and overrides; default: the env id
    weight: float = 1.0  # its share of the mix, relative to the other suites
    split: Literal["train", "eval"] = "train"  # which tasks it draws
    group_size: int = 8  # samples of one task
    min_group: int = 2  # survivors with which a group still trains
    max_turns: int | None = None  # default: the environment's own
    sampling: Sampling = Sampling()
    rewards: tuple[RewardConfig, ...] = (RewardConfig("env"),)
    isolation: Isolation | None = None  # default: the environment's own
    max_abandoned: int = 8  # abandoned threads after which its episodes run in processes
    timeouts: Timeouts | None = None  # default: the environment's own
    algorithm: str | None = None  # default: the trainer's
    options: Mapping[str, Any] = field(default_factory=dict)
    allow_truncated_sampling: bool = False  # train on top-k, top-p or min-p samples


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """The learning side."""

    algorithm: str = "algorithms/grpo"
    options: Mapping[str, Any] = field(default_factory=dict)  # the algorithm's
    groups_per_step: int = 24
    learning_rate: float = 1e-4
    warmup_steps: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    optimizer: str = "adamw"  # any optimizer of optax, by name
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    max_grad_norm: float = 1.0
    rows: int = 8  # rows of a micro-batch
    row_tokens: int = 512  # tokens of a row; a longer sample is refused
    old_logp: Literal["behaviour"] = "behaviour"


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What runs when."""

    mode: Literal["in_flight", "drain", "on_policy"] = "in_flight"
    max_staleness: int = 4  # versions a trained token may be behind
    max_episodes: int = 256  # concurrent episodes over all suites
    max_attempts: int = 2  # fresh environments a sample gets
    quarantine_after: int = 3  # groups a task may fail in
    max_failure_share: float = 0.5
    failure_window: int = 200  # episodes over which the share is taken
    no_signal_steps: int = 10  # steps without any signal that end the run
    stall_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The inference side."""

    slots: int = 32
    max_context: int = 512  # prompt and sampled tokens of one conversation
    prefill_chunk: int = 32
    decode_steps: int = 4  # fused on device between two looks at the queue
    deterministic: bool | None = None  # default: true in on_policy mode
    queue_size: int = 4096


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When the run is saved."""

    every_steps: int = 10
    keep: int = 2


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Greedy accuracy on held-out tasks, before and after training; n = 0 switches it off."""

    n: int = 0  # tasks per suite
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PluginsConfig:
    """Which plugins. `plugins = [...]` in a config file is short for `files`."""

    files: tuple[str, ...] = ()
    required: tuple[str, ...] = ()  # e.g. "tunix-env-math>=0.1,<1"
    disabled: tuple[str, ...] = ()
    strict: bool = False  # any broken plugin is fatal


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole run."""

    suites: tuple[SuiteConfig, ...]  # [[suite]] in TOML
    model: str = "models/nano"  # an id, a run directory (RUN or RUN@STEP), or a checkpoint path
    model_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    steps: int = 100
    run_dir: str = ""  # default: runs/<config name>-<time>
    plugins: PluginsConfig = PluginsConfig()
    trainer: TrainerConfig = TrainerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    engine: EngineConfig = EngineConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    trackers: tuple[str, ...] = ()
