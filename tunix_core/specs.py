"""What a plugin registers: frozen descriptions with lazy targets.

A target is "module:attr"; it is imported when the thing is used, never when it is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

Isolation = Literal["in-process", "process", "venv", "container"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a registered thing: its default and what it does."""

    default: Any
    help: str = ""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds each call on an environment may take."""

    reset_s: float = 60.0
    step_s: float = 60.0
    close_s: float = 10.0
    score_s: float = 60.0
    model_s: float = 600.0
    episode_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """An environment of the hub.

    Attributes:
        id: "namespace/name", or a family "namespace/*" whose rest is passed as `name`.
        target: the environment class, a subclass of BaseTaskEnv.
        tasks: `make_tasks(split, seed, **options) -> TaskSource`; for a family it also takes `name`.
        summary: one line.
        options: what `tasks` and the class take, with defaults; each is given those it names.
        score_range: lowest and highest score; a graded wrong answer gets the lowest.
        chance_score: the score of a policy that knows nothing, or None.
        max_turns: the longest episode in turns.
        isolation: where it runs unless the suite says otherwise.
        requires: what must be there besides Python packages: "sandbox", any kind of it, or "isolated-sandbox",
            one that keeps code from this machine.
        members: for a family: a lazy target `() -> list[str]` of names, or "".
        solutions: what `tunix check --gold` plays: a lazy target `(task) -> {name: what a policy says, turn by turn}`,
            or "". "gold" must get the highest score, and every other must not.
    """

    id: str
    target: str
    tasks: str
    summary: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)
    score_range: tuple[float, float] = (0.0, 1.0)
    chance_score: float | None = None
    max_turns: int = 1
    isolation: Isolation = "in-process"
    requires: tuple[str, ...] = ()
    timeouts: Timeouts = Timeouts()
    members: str = ""
    solutions: str = ""


@dataclass(frozen=True, slots=True)
class _Spec:
    id: str
    target: str
    summary: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolSpec(_Spec):
    """A tool: the target is a typed function, a Tool, or a SandboxTool."""


@dataclass(frozen=True, slots=True)
class RewardSpec(_Spec):
    """A reward: the target is a function decorated with @reward or @group_reward."""


@dataclass(frozen=True, slots=True)
class AlgorithmSpec(_Spec):
    """An algorithm: the target is `(**options) -> contracts.Algorithm`."""


@dataclass(frozen=True, slots=True)
class ModelSpec(_Spec):
    """A model: the target is `(**options) -> contracts.Policy`. One that names `mesh` (a jax Mesh or None) is given
    it, and lays its weights there; that of another is laid once it is made."""


@dataclass(frozen=True, slots=True)
class EngineSpec(_Spec):
    """An engine: the target is `(policy, weights, **options) -> contracts.Engine`.

    Besides its options, it is given those of these that it names: `config` (config.EngineConfig), `deterministic` and
    `mesh` (a jax Mesh, or None).
    """


@dataclass(frozen=True, slots=True)
class SandboxSpec(_Spec):
    """A kind of sandbox: the target is `(**options) -> contracts.Sandboxes`."""


@dataclass(frozen=True, slots=True)
class CurriculumSpec(_Spec):
    """A curriculum: the target is `(source, *, seed, **options) -> contracts.Curriculum`, for one suite's tasks."""


@dataclass(frozen=True, slots=True)
class TrackerSpec(_Spec):
    """A tracker: the target is `(run_dir, **options) -> contracts.Tracker`."""


def load_target(target: str) -> Any:
    """The object that "module:attr" names. Raises ImportError, AttributeError or ValueError."""
    module, _, attr = target.partition(":")
    if not attr:
        raise ValueError(f"target {target!r} must look like 'module:attr'")
    found: Any = import_module(module)
    for name in attr.split("."):
        found = getattr(found, name)
    return found
