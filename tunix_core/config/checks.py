"""What a well-typed configuration must also satisfy, so that a run fails before it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tunix_core.config.lines import Path
from tunix_core.config.tree import AxesConfig, LoraConfig, RunConfig, SuiteConfig
from tunix_core.errors import did_you_mean

Problem = tuple[Path, str]

_AT_LEAST_ONE = (
    "trainer.groups_per_step",
    "trainer.rows",
    "trainer.row_tokens",
    "trainer.epochs",
    "trainer.minibatches",
    "scheduler.max_episodes",
    "scheduler.max_attempts",
    "scheduler.quarantine_after",
    "scheduler.failure_window",
    "scheduler.no_signal_steps",
    "engine.slots",
    "engine.workers",
    "engine.max_context",
    "engine.prefill_chunk",
    "engine.decode_steps",
    "engine.queue_size",
    "checkpoint.every_steps",
    "checkpoint.keep",
    "eval.slots",
)
_NOT_NEGATIVE = (
    "steps",
    "trainer.learning_rate",
    "trainer.warmup_steps",
    "scheduler.max_staleness",
    "scheduler.max_debt_steps",
    "eval.n",
    "eval.every_steps",
)
_ABOVE_ZERO = (
    "trainer.max_grad_norm",
    "trainer.warn_disagreement",
    "trainer.max_disagreement",
    "scheduler.stall_timeout_s",
    "scheduler.suite_patience_s",
)


def problems(config: RunConfig) -> Iterator[Problem]:
    """(path of the key, what is wrong with it and what to do), for everything out of range."""
    yield from _bounded(config)
    if not 0 < config.scheduler.max_failure_share <= 1:
        yield ("scheduler", "max_failure_share"), f"must be in (0, 1], and is {config.scheduler.max_failure_share}"
    if config.trainer.row_tokens < config.engine.max_context:
        yield (
            ("trainer", "row_tokens"),
            f"trainer.row_tokens ({config.trainer.row_tokens}) must be at least engine.max_context "
            f"({config.engine.max_context}), or the longest conversations could not be trained on",
        )
    yield from _lora_problems(config.trainer.lora)
    yield from _mesh_problems(config)
    yield from _worker_problems(config)
    if config.eval.every_steps and not config.eval.n:
        yield ("eval", "every_steps"), "eval.every_steps needs eval.n, the held-out tasks of each suite; set it too"
    if not config.suites:
        yield (), 'a run needs at least one suite; add [[suite]] with env = "namespace/name"'
    names = Counter(suite.name for suite in config.suites)
    for name in config.sandbox.unisolated:
        if name not in names:
            yield ("sandbox", "unisolated"), f"no suite is named {name!r}.{did_you_mean(name, list(names))}"
    for index, suite in enumerate(config.suites):
        at: Path = ("suite", index)
        if names[suite.name] > 1:
            yield (*at, "name"), f"{names[suite.name]} suites are named {suite.name!r}; give each a `name` of its own"
        yield from (((*at, *path), f"suite {suite.name!r}: {text}") for path, text in _suite_problems(suite))
        if suite.oversample and config.scheduler.mode == "on_policy":
            yield (
                (*at, "oversample"),
                f"suite {suite.name!r}: oversample keeps the samples that end first, which no seed decides; "
                'leave it out, or set scheduler.mode = "in_flight"',
            )
        if suite.sampling.max_tokens >= config.engine.max_context:
            yield (
                (*at, "sampling", "max_tokens"),
                f"suite {suite.name!r}: sampling.max_tokens ({suite.sampling.max_tokens}) must be below "
                f"engine.max_context ({config.engine.max_context})",
            )


def _bounded(config: RunConfig) -> Iterator[Problem]:
    for names, holds, wanted in (
        (_AT_LEAST_ONE, lambda v: v >= 1, "at least 1"),
        (_NOT_NEGATIVE, lambda v: v >= 0, "at least 0"),
        (_ABOVE_ZERO, lambda v: v > 0, "above 0"),
    ):
        for name in names:
            value: Any = config
            for part in name.split("."):
                value = getattr(value, part)
            if value is not None and not holds(value):
                yield tuple(name.split(".")), f"{name} must be {wanted}, and is {value}"


def _lora_problems(lora: LoraConfig | None) -> Iterator[Problem]:
    if lora is None:
        return
    if lora.rank < 1:
        yield ("trainer", "lora", "rank"), f"trainer.lora.rank must be at least 1, and is {lora.rank}"
    if lora.alpha <= 0:
        yield ("trainer", "lora", "alpha"), f"trainer.lora.alpha must be above 0, and is {lora.alpha}"
    if not lora.targets:
        yield ("trainer", "lora", "targets"), 'trainer.lora.targets must name "attention", "mlp" or both'


def _worker_problems(config: RunConfig) -> Iterator[Problem]:
    slots, workers, devices = config.engine.slots, config.engine.workers, config.mesh.engine.devices
    if workers > 1 and slots % workers:
        yield (
            ("engine", "workers"),
            f"engine.slots ({slots}) must be a multiple of engine.workers ({workers}), which share them out",
        )
    if workers > 1 and devices > 1:
        yield (
            ("engine", "workers"),
            f"engine.workers is {workers}, and mesh.engine has {devices} devices, all of which one step uses; "
            "set engine.workers = 1",
        )


def _mesh_problems(config: RunConfig) -> Iterator[Problem]:
    for name in ("trainer", "engine", "reference"):
        axes: AxesConfig | None = getattr(config.mesh, name)
        for field in fields(axes) if axes else ():
            if (size := getattr(axes, field.name)) < 1:
                yield ("mesh", name, field.name), f"mesh.{name}.{field.name} must be at least 1, and is {size}"
    shares = config.mesh.trainer.data * config.mesh.trainer.fsdp
    if config.trainer.rows % shares:
        yield (
            ("mesh", "trainer"),
            f"trainer.rows ({config.trainer.rows}) must be a multiple of mesh.trainer's data × fsdp ({shares}), "
            "which share the rows out",
        )


def _suite_problems(suite: SuiteConfig) -> Iterator[Problem]:
    if not suite.env:
        yield ("env",), "env must be an environment's id"
    if suite.weight <= 0:
        yield ("weight",), f"weight must be above 0, and is {suite.weight}; leave the suite out instead"
    if suite.group_size < 1:
        yield ("group_size",), f"group_size must be at least 1, and is {suite.group_size}"
    if not 1 <= suite.min_group <= suite.group_size:
        yield (
            ("min_group",),
            f"min_group must be between 1 and group_size ({suite.group_size}), and is {suite.min_group}; "
            "set it to how many samples of a group must survive",
        )
    if suite.oversample < 0:
        yield ("oversample",), f"oversample must be at least 0, and is {suite.oversample}"
    if suite.refill_limit < 1:
        yield ("refill_limit",), f"refill_limit must be at least 1, and is {suite.refill_limit}"
    if suite.curriculum is not None and not suite.curriculum.id:
        yield ("curriculum", "id"), 'a curriculum needs an id, e.g. "curricula/frontier"'
    if suite.max_turns is not None and suite.max_turns < 1:
        yield ("max_turns",), f"max_turns must be at least 1, and is {suite.max_turns}"
    if suite.learning_weight < 0:
        yield ("learning_weight",), f"learning_weight must be at least 0, and is {suite.learning_weight}"
    if not 0 <= suite.credit.discount <= 1:
        yield ("credit", "discount"), f"credit.discount must be in [0, 1], and is {suite.credit.discount}"
    if suite.max_abandoned < 0:
        yield ("max_abandoned",), f"max_abandoned must be at least 0, and is {suite.max_abandoned}"
    yield from _timeout_problems(suite)
    yield from _reward_problems(suite)
    yield from ((("sampling", name), text) for name, text in _sampling_problems(suite))


def _timeout_problems(suite: SuiteConfig) -> Iterator[Problem]:
    for field in fields(suite.timeouts):
        value = getattr(suite.timeouts, field.name)
        if value is not None and value <= 0:
            yield ("timeouts", field.name), f"timeouts.{field.name} must be above 0 seconds"


def _reward_problems(suite: SuiteConfig) -> Iterator[Problem]:
    if not suite.rewards:
        yield ("rewards",), 'rewards must list at least one part; the environment\'s own score is "env"'
    ids = [reward.id for reward in suite.rewards]
    for index, id in enumerate(ids):
        if not id:
            yield ("rewards", index), "a reward needs an id"
        if id in ids[:index]:
            yield ("rewards", index), f"reward {id!r} is listed twice; one part per id, with a weight"


def _sampling_problems(suite: SuiteConfig) -> Iterator[tuple[str, str]]:
    sampling = suite.sampling
    if sampling.temperature < 0:
        yield "temperature", f"sampling.temperature must be above 0, and is {sampling.temperature}"
    if sampling.temperature == 0:
        yield "temperature", "sampling.temperature is 0: greedy samples of one task are all equal and teach nothing"
    if sampling.top_k < 0:
        yield "top_k", f"sampling.top_k must be at least 0 (0 is off), and is {sampling.top_k}"
    if not 0 < sampling.top_p <= 1:
        yield "top_p", f"sampling.top_p must be in (0, 1], and is {sampling.top_p}"
    if not 0 <= sampling.min_p < 1:
        yield "min_p", f"sampling.min_p must be in [0, 1), and is {sampling.min_p}"
    if sampling.max_tokens < 1:
        yield "max_tokens", f"sampling.max_tokens must be at least 1, and is {sampling.max_tokens}"
    if sampling.max_episode_tokens is not None and sampling.max_episode_tokens < 1:
        yield (
            "max_episode_tokens",
            f"sampling.max_episode_tokens must be at least 1, and is {sampling.max_episode_tokens}",
        )
    if sampling.truncates and not suite.allow_truncated_sampling:
        culprit = "top_k" if sampling.top_k > 0 else "top_p" if sampling.top_p < 1 else "min_p"
        yield (
            culprit,
            f"sampling.{culprit} cuts the distribution trained on; set allow_truncated_sampling = true to do so",
        )
