"""The optimizer a config names, from optax."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import jax.numpy as jnp
import optax

from tunix_core.config import TrainerConfig
from tunix_core.contracts import Params
from tunix_core.errors import UsageError, did_you_mean
from tunix_core.trainer.placing import Placing
from tunix_core.trainer.steps import Update, make_update, sums_lie

OptimizerState = tuple[Any, Any]  # what optax keeps, and how many updates were taken


def make_schedule(config: TrainerConfig, steps: int) -> optax.Schedule:
    """Optimizer updates taken -> learning rate: up from 0 over `warmup_steps`, then as `schedule` says until `steps`.

    A step has epochs · minibatches updates, all at one rate.
    """
    updates = config.epochs * config.minibatches
    by_step = _by_step(config, steps)
    return by_step if updates == 1 else lambda taken: by_step(jnp.asarray(taken) // updates)


def _by_step(config: TrainerConfig, steps: int) -> optax.Schedule:
    rate, warmup = config.learning_rate, config.warmup_steps
    rest = max(steps - warmup, 1)
    after = {
        "constant": lambda: optax.constant_schedule(rate),
        "linear": lambda: optax.linear_schedule(rate, 0.0, rest),
        "cosine": lambda: optax.cosine_decay_schedule(rate, rest),
    }[config.schedule]()
    if not warmup:
        return after
    # from rate / warmup, not from 0: a first step that changes nothing would be wasted
    rise = optax.linear_schedule(rate / warmup, rate, max(warmup - 1, 1))
    return optax.join_schedules([rise, after], [warmup])


def make_optimizer(config: TrainerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Clipping by the global norm, then the optimizer `config.optimizer` of optax.

    Raises:
        UsageError: no such optimizer, or it does not take one of `optimizer_options`.
    """
    make: Any = getattr(optax, config.optimizer, None)
    taken = signature(make).parameters if callable(make) else {}
    if "learning_rate" not in taken:
        hint = did_you_mean(config.optimizer, [name for name in dir(optax) if name.islower()])
        raise UsageError(f"trainer.optimizer = {config.optimizer!r} is no optimizer of optax.{hint}")
    for name in config.optimizer_options:
        if name not in taken:
            hint = did_you_mean(name, list(taken))
            raise UsageError(f"trainer.optimizer_options: {config.optimizer} takes no {name!r}.{hint}")
    optimizer: Any = make(learning_rate=schedule, **config.optimizer_options)
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)


def make_stepping(
    config: TrainerConfig, steps: int, params: Params, labels: Sequence[str], placing: Placing
) -> tuple[OptimizerState, Update]:
    """The optimizer's first state for these parameters, and the update that moves both.

    Args:
        steps: of the whole run, for the schedule.
        labels: of the sums the update is given.

    Raises:
        UsageError: as `make_optimizer` does.
    """
    schedule = make_schedule(config, steps)
    optimizer = make_optimizer(config, schedule)
    state, lies = placing.optimizer(optimizer, params)

    def outputs(whole: Any) -> Any:
        own = placing.shardings(params)
        return own, lies, whole, dict.fromkeys(labels, sums_lie(own, whole)), whole

    taken = placing.whole(jnp.zeros((), jnp.int32))
    return (state, taken), make_update(optimizer, schedule, outputs, placing)
