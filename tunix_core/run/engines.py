"""Builds the engine that a config names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

from tunix_core.config import EngineConfig
from tunix_core.contracts import Engine, Policy, WeightSource
from tunix_core.errors import UsageError, did_you_mean
from tunix_core.plugins import Hub


def open_engine(
    config: EngineConfig,
    policy: Policy,
    weights: WeightSource,
    hub: Hub,
    *,
    deterministic: bool,
    training: bool,
    mesh: Any = None,
) -> Engine:
    """The engine `config.id` names, not yet started.

    Args:
        deterministic: what samples must not depend on, for engines that can promise it.
        training: whether what it samples is to be trained on.
        mesh: the devices it may use, a jax Mesh; None: its own choice.

    Raises:
        UnknownIdError: nothing installed has this id.
        UsageError: an option it does not take, or it gives no log-probabilities and is to be trained with.
    """
    make = hub.load_object("engines", config.id)
    _check_options(config, hub)
    ours = {"config": fit(config, policy), "deterministic": deterministic, "mesh": mesh}
    engine: Engine = make(policy, weights, **_taken(make, ours), **config.options)
    if training and not engine.gives_logprobs:
        raise UsageError(
            f"engine {config.id!r} gives no log-probabilities of what it samples, and training needs the one each "
            "token was sampled with; use it with `tunix eval`, or set engine.id to another for training."
        )
    return engine


def fit(config: EngineConfig, policy: Policy) -> EngineConfig:
    """The engine's config with its context no longer than the model's positions."""
    return replace(config, max_context=min(config.max_context, policy.model.max_positions))


def _check_options(config: EngineConfig, hub: Hub) -> None:
    known = list(hub.find("engines", config.id).options)
    for name in config.options:
        if name not in known:
            near, listed = did_you_mean(name, known), ", ".join(known) or "none"
            raise UsageError(f"engine {config.id!r} has no option {name!r}.{near} It takes: {listed}.")


def _taken(make: Any, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Those of what is offered that the target names."""
    parameters = signature(make).parameters
    return {name: value for name, value in offered.items() if name in parameters}
