"""The whole configuration as frozen dataclasses.

What follows a field is its help in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from tunix_core.contracts import Remat, Sampling
from tunix_core.specs import Isolation, Timeouts


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """One part of a suite's score: a reward's id (or "env"), its weight and options."""

    id: str  # whole, e.g. "rewards/length"
    weight: float = 1.0  # the score is the weighted sum of the parts
    options: Mapping[str, Any] = field(default_factory=dict)  # the reward's


@dataclass(frozen=True, slots=True)
class CurriculumConfig:
    """What chooses a suite's next task: a curriculum's id and its options."""

    id: str  # whole, e.g. "curricula/frontier"
    options: Mapping[str, Any] = field(default_factory=dict)  # the curriculum's


@dataclass(frozen=True, slots=True)
class TimeoutsConfig:
    """Seconds each call on an environment may take; what is left out is the environment's own."""

    reset_s: float | None = None
    step_s: float | None = None
    close_s: float | None = None
    score_s: float | None = None
    model_s: float | None = None
    episode_s: float | None = None

    def over(self, own: Timeouts) -> Timeouts:
        """`own` with what is given here in its place."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(own, **given)


@dataclass(frozen=True, slots=True)
class CreditConfig:
    """What a turn is credited with, when it is judged by what came after it.

    A turn's reward is what the environment gave for it, times the weight of "env"; what the score has
    beyond those is the last turn's.
    """

    per: Literal["trajectory", "turn"] = "trajectory"  # one advantage for all, or one for each turn
    discount: float = 1.0  # of a turn's reward, per turn, in the return of an earlier one
    baseline: Literal["trajectory", "turn"] = "trajectory"  # the others' whole returns, or theirs from the same turn on


@dataclass(frozen=True, slots=True)
class SuiteConfig:
    """One suite: an environment, how much of it, how it is sampled and scored."""

    env: str  # the environment's id, e.g. "games/frozen-lake"
    name: str = ""  # names it in metrics and overrides; default: the env id
    weight: float = 1.0  # its share of the mix, relative to the other suites
    split: Literal["train", "eval"] = "train"  # which tasks it draws
    group_size: int = 8  # samples of one task
    min_group: int = 2  # survivors with which a group still trains
    oversample: int = 0  # samples started beyond group_size; those that end last are cancelled
    zero_variance: Literal["keep", "refill"] = "keep"  # a group without a signal takes a place, or another is tried
    refill_limit: int = 4  # groups tried for one place; the last one takes it
    curriculum: CurriculumConfig | None = None  # an id, or {id, options}; default: every task once an epoch
    max_turns: int | None = None  # default: the environment's own
    sampling: Sampling = Sampling()
    rewards: tuple[RewardConfig, ...] = (RewardConfig("env"),)  # "env" is the environment's own score
    isolation: Isolation | None = None  # default: the environment's own
    python: str = ""  # of isolation "venv": the interpreter of the environment's own virtual environment
    max_abandoned: int = 8  # blocking calls at a time; when so many threads hang, its episodes run in processes
    timeouts: TimeoutsConfig = TimeoutsConfig()
    algorithm: str | None = None  # default: the trainer's
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)  # over the trainer's, where it is the same
    learning_weight: float = 1.0  # scales its part of the loss
    credit: CreditConfig = CreditConfig()
    options: Mapping[str, Any] = field(default_factory=dict)  # the environment's; `tunix hub show ID` lists them
    allow_truncated_sampling: bool = False  # train on top-k, top-p or min-p samples


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Low-rank adapters, trained in the place of the model's own weights; without this table all weights are trained.

    A matrix W computes as W + alpha / rank · A B.
    """

    rank: int = 16  # columns of A, rows of B
    alpha: float = 32.0  # what A B counts, times the rank
    targets: tuple[Literal["attention", "mlp"], ...] = ("attention", "mlp")  # the parts of each layer that get them
    base: Literal["model", "int8", "nf4"] = "model"  # what the layers' own matrices are kept in: 8 or 4 bits (QLoRA)


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """The learning side."""

    algorithm: str = "algorithms/grpo"  # for suites that name none of their own
    options: Mapping[str, Any] = field(default_factory=dict)  # the algorithm's
    groups_per_step: int = 24  # over all suites, shared out by their weights
    learning_rate: float = 1e-4
    warmup_steps: int = 0  # over which the learning rate grows from 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate, after warm-up
    optimizer: str = "adamw"  # any optimizer of optax, by name
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # its keyword arguments
    max_grad_norm: float = 1.0  # a longer gradient is scaled down to it
    master: Literal["float32", "model"] = "float32"  # what trained weights are kept in; the model computes in its own
    rows: int = 8  # rows of a micro-batch
    row_tokens: int = 512  # tokens of a row; a longer sample is refused
    share_prefix: bool = True  # what samples of a group begin with is computed once; the gradient is the same
    remat: Remat = "none"  # "layers": backward computes each again, a third more time for most of the memory
    old_logp: Literal["behaviour", "proximal"] = "behaviour"  # to what the ratio is: what sampled, or the step's start
    epochs: int = 1  # how often a step passes over its samples
    minibatches: int = 1  # updates an epoch is shared out to, by groups
    warn_disagreement: float | None = 0.1  # |Δ log-probability| of trainer and engine that is warned of
    max_disagreement: float | None = None  # more of it ends the run
    lora: LoraConfig | None = None  # train adapters only
    reference: str = ""  # the model that a KL or a teacher is, as `model` names one; default: the run's first weights


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What runs when."""

    mode: Literal["in_flight", "drain", "on_policy"] = "in_flight"  # how episodes meet new weights
    max_staleness: int = 4  # versions a trained token may be behind
    max_episodes: int = 256  # concurrent episodes over all suites
    max_attempts: int = 2  # fresh environments a sample gets
    quarantine_after: int = 3  # groups a task may fail in
    max_failure_share: float = 0.5  # of a suite's episodes; more ends the run
    failure_window: int = 200  # episodes over which the share is taken
    no_signal_steps: int = 10  # steps without any signal that end the run
    stall_timeout_s: float = 600.0  # without any finished episode, after which the run ends
    suite_patience_s: float = 3600.0  # a suite that delivers no group for so long is left owing, and steps go on
    max_debt_steps: int = 4  # quotas a suite may owe; it delivers them first
    on_starved: Literal["end", "drop"] = "end"  # a suite that would owe more ends the run, or is left out


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The inference side."""

    id: str = "engines/slots"  # which engine; `tunix hub list engines` lists them
    options: Mapping[str, Any] = field(default_factory=dict)  # the engine's own
    slots: int = 32  # conversations decoded at once
    workers: int = 1  # decode loops side by side, each with its share of the slots
    max_context: int = 512  # prompt and sampled tokens of one conversation
    prefill_chunk: int = 32  # prompt tokens read at once
    decode_steps: int = 4  # fused on device between two looks at the queue
    deterministic: bool | None = None  # default: true in on_policy mode
    queue_size: int = 4096  # waiting requests; more wait to be let in
    weight_update: Literal["keep", "recompute"] = "keep"  # what new weights do with the cache of requests in flight


@dataclass(frozen=True, slots=True)
class AxesConfig:
    """A mesh of data · fsdp · tensor devices."""

    data: int = 1  # copies of the weights; each computes other rows
    fsdp: int = 1  # shards of the weights, gathered where they are used; each computes other rows
    tensor: int = 1  # shards of what each layer computes

    @property
    def devices(self) -> int:
        return self.data * self.fsdp * self.tensor


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """Which devices compute what. Of one device each, all is on the first."""

    trainer: AxesConfig = AxesConfig()
    engine: AxesConfig = AxesConfig()
    reference: AxesConfig | None = None  # default: the trainer's devices, laid as there
    disjoint: bool = False  # each on devices of its own, in this order; else all from the first device on


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When the run is saved."""

    every_steps: int = 10  # and at the end
    keep: int = 2  # newest checkpoints


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Greedy accuracy on held-out tasks, before and after training; n = 0 switches it off."""

    n: int = 0  # tasks per suite
    seed: int = 0  # of the held-out tasks
    every_steps: int = 0  # also during training, after so many steps; 0 is never
    mode: Literal["beside", "turns"] = "beside"  # on an engine of its own, or while training waits
    slots: int = 8  # of that engine


@dataclass(frozen=True, slots=True)
class ProfilingConfig:
    """What a run writes of where its time went."""

    spans: bool = True  # to the run directory, for `tunix trace`
    jax_step: int | None = None  # the step during which JAX's profiler runs too; it slows that step down


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """Where suites that need a sandbox run what they do not trust."""

    kind: str = "sandboxes/docker"  # a kind of sandbox; `tunix hub list sandboxes` lists them
    options: Mapping[str, Any] = field(default_factory=dict)  # the kind's; `tunix hub show KIND` lists them
    unisolated: tuple[str, ...] = ()  # suites, by name, that may run unisolated although they ask for isolation


@dataclass(frozen=True, slots=True)
class PluginsConfig:
    """Which plugins. `plugins = [...]` in a config file is short for `files`."""

    files: tuple[str, ...] = ()  # Python files with hooks, relative to the config file
    required: tuple[str, ...] = ()  # e.g. "tunix-env-math>=0.1,<1"
    disabled: tuple[str, ...] = ()  # distributions or namespaces never imported
    strict: bool = False  # any broken plugin is fatal


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole run."""

    suites: tuple[SuiteConfig, ...]  # [[suite]] in TOML
    model: str = "models/nano"  # an id, a run directory (RUN or RUN@STEP), or a checkpoint path
    model_options: Mapping[str, Any] = field(default_factory=dict)  # only for an id
    seed: int = 0  # of everything random
    steps: int = 100  # updates of the weights
    run_dir: str = ""  # default: runs/CONFIG-TIME
    plugins: PluginsConfig = PluginsConfig()
    trainer: TrainerConfig = TrainerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    engine: EngineConfig = EngineConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    profiling: ProfilingConfig = ProfilingConfig()
    sandbox: SandboxConfig = SandboxConfig()
    trackers: tuple[str, ...] = ()  # ids; metrics.jsonl is written in any case
