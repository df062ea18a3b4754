"""Builds the parts of a run from its config, and connects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from tunix_core.config import RunConfig, SuiteConfig
from tunix_core.contracts import Curriculum, Engine, EnvOpener, Hooks, Policy, Sampling, Sandboxes, Scorer, TaskSource
from tunix_core.errors import UsageError, check_number, did_you_mean
from tunix_core.plugins import Hub
from tunix_core.rollout import Suite
from tunix_core.run.sandboxes import needs_sandbox
from tunix_core.specs import EnvSpec, Timeouts, load_target
from tunix_core.types import derive_seed


@dataclass(frozen=True, slots=True)
class Bench:
    """One suite, ready to run: its spec, its config with defaults filled in, its tasks' maker."""

    spec: EnvSpec
    config: SuiteConfig
    options: Mapping[str, Any]
    timeouts: Timeouts
    max_turns: int

    def tasks(self, split: str, seed: int) -> TaskSource:
        """The suite's tasks, made with those options that their maker takes.

        Raises:
            UsageError: its package refuses the options.
        """
        from tunix_core.envs import accepted

        make = load_target(self.spec.tasks)
        try:
            return make(split=split, seed=seed, **accepted(make, self.options))
        except (TypeError, ValueError, OSError) as error:
            raise UsageError(
                f"suite {self.config.name!r}: its tasks can't be made from {dict(self.options)}: {error}"
            ) from error


def prepare(config: SuiteConfig, hub: Hub) -> Bench:
    """Finds the suite's environment and fills in what its config leaves open.

    Raises:
        UnknownIdError: nothing installed has this id.
        UsageError: an option that the environment does not take.
    """
    spec = hub.find("envs", config.env)
    elsewhere = (config.isolation or spec.isolation) == "venv"
    for what in ("tasks",) if elsewhere else ("target", "tasks"):  # what can't be imported is told now, with its plugin
        hub.load_object("envs", spec.id, what)
    unknown = [name for name in config.options if name not in spec.options]
    if unknown:
        near, known = did_you_mean(unknown[0], list(spec.options)), ", ".join(spec.options) or "none"
        raise UsageError(f"suite {config.name!r}: {config.env} has no option {unknown[0]!r}.{near} It takes: {known}.")
    for name, value in config.options.items():
        check_number(f"suite {config.name!r}: option {name!r}", value, spec.options[name].default)
    options = {name: option.default for name, option in spec.options.items()} | dict(config.options)
    return Bench(spec, config, options, config.timeouts.over(spec.timeouts), config.max_turns or spec.max_turns)


def connect(
    bench: Bench,
    hub: Hub,
    engine: Engine,
    policy: Policy,
    run_dir: Path | None = None,
    sandboxes: Sandboxes | None = None,
) -> Suite:
    """Builds the suite's environment opener and rewards, and joins them to the engine.

    Args:
        sandboxes: the run's; for the suites whose environment requires them.
    """
    return Suite(
        name=bench.config.name,
        env=bench.spec.id,
        opener=environments(bench, hub, sandboxes),
        scorer=rewards(bench, hub),
        engine=engine,
        chat=policy.chat,
        hooks=hub.hooks,
        timeouts=bench.timeouts,
        run_dir=run_dir,
    )


def environments(bench: Bench, hub: Hub, sandboxes: Sandboxes | None = None) -> EnvOpener:
    """Opens the suite's environments; the caller closes it."""
    from tunix_core.envs import make_opener

    return make_opener(
        bench.spec,
        load_target,
        isolation=bench.config.isolation,
        python=bench.config.python,
        timeouts=bench.timeouts,
        max_abandoned=bench.config.max_abandoned,
        options=bench.options,
        max_steps=bench.max_turns,
        decide=hub.hooks.decide,
        sandboxes=sandboxes if needs_sandbox(bench.spec) else None,
        find_tool=lambda identity: hub.load_object("tools", identity),
    )


def rewards(bench: Bench, hub: Hub) -> Scorer:
    """Scores the suite's episodes; the caller closes it."""
    from tunix_core.rewards import make_scorer

    return make_scorer(
        bench.config.rewards,
        lambda identity: hub.load_object("rewards", identity),
        range_of_env=bench.spec.score_range,
        timeouts=bench.timeouts,
    )


def algorithms(config: RunConfig, hub: Hub) -> dict[str, Any]:
    """Each suite's algorithm, one object where id and options are the same, so that these share their step.

    Raises:
        UnknownIdError: nothing installed has this id.
        UsageError: an option that the algorithm does not take, or its value.
    """
    made: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    for suite in config.suites:
        identity = suite.algorithm or config.trainer.algorithm
        options = dict(config.trainer.options) if identity == config.trainer.algorithm else {}
        options |= suite.algorithm_options
        key = f"{identity} {sorted(options.items())}"
        if key not in made:
            made[key] = _algorithm(identity, options, hub)
        chosen[suite.name] = made[key]
    return chosen


def make_curriculum(bench: Bench, source: TaskSource, config: RunConfig, hub: Hub) -> Curriculum | None:
    """What chooses the suite's tasks, or None when each comes once an epoch.

    Raises:
        UnknownIdError: nothing installed has this id.
        UsageError: an option that the curriculum does not take, or its value.
    """
    asked = bench.config.curriculum
    if asked is None:
        return None
    make, listed = hub.load_object("curricula", asked.id), list(hub.find("curricula", asked.id).options)
    check_options(make, asked.id, asked.options, listed)
    seed = derive_seed("curriculum", config.seed, bench.config.name)
    try:
        return make(source, seed=seed, **asked.options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"suite {bench.config.name!r}: {asked.id} with {dict(asked.options)}: {error}") from error


def _algorithm(identity: str, options: Mapping[str, Any], hub: Hub) -> Any:
    make = hub.load_object("algorithms", identity)
    check_options(make, identity, options, list(hub.find("algorithms", identity).options))
    return make(**options)


def check_options(make: Any, identity: str, options: Mapping[str, Any], listed: Sequence[str]) -> None:
    """Raises UsageError when `make` does not take one of the options, and says which are `listed`; or its value."""
    taken = signature(make).parameters
    for name, value in options.items():
        check_number(f"{identity}: option {name!r}", value, taken[name].default if name in taken else None)
        if name not in taken and all(p.kind is not Parameter.VAR_KEYWORD for p in taken.values()):
            near, known = did_you_mean(name, listed), ", ".join(listed) or "none"
            raise UsageError(f"{identity} has no option {name!r}.{near} It takes: {known}.")


def greedy(sampling: Sampling) -> Sampling:
    """The same budgets at temperature 0."""
    from dataclasses import replace

    return replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


class Quiet:
    """Hooks that nobody listens to: evaluation beside a run does not count as the run's episodes."""

    def notify(self, hook: str, **arguments: Any) -> None:
        pass

    def collect(self, hook: str, **arguments: Any) -> Sequence[tuple[str, Any]]:
        return ()

    def decide(self, hook: str, **arguments: Any) -> Any:
        return None


QUIET: Hooks = Quiet()
