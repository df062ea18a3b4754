"""Weights that correct for tokens sampled by another policy than the one the ratio is taken to.

Each is a pure function (logp, batch, **options) -> weights float32 [R, T], which multiply a token's loss;
0 rejects the token. No gradient goes through a weight, and a rejected token stays in the denominator.
In the formulas w = exp(old_logp − behaviour_logp) of a token, W the product and g the geometric mean of w
over the trained tokens of a sequence, each from the weights and kernels that really sampled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tunix_core.algorithms.losses import log_ratio, sequence_means, sequence_sums
from tunix_core.algorithms.metrics import Metrics, token_means
from tunix_core.errors import UsageError, check_number, did_you_mean

Array = jax.Array
Batch = Mapping[str, Any]
Corrections = Mapping[str, Mapping[str, float]]


def decoupled(logp: Array, batch: Batch) -> Array:
    """w, as decoupled PPO has it (Hilton et al. 2021, "Batch size-invariance for policy optimization")."""
    return jnp.exp(_log_weight(batch))


def token_tis(logp: Array, batch: Batch, *, cap: float = 2.0) -> Array:
    """min(w, cap): truncated importance sampling by token (Yao et al. 2025, "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training")."""
    return jnp.minimum(decoupled(logp, batch), cap)


def icepop(logp: Array, batch: Batch, *, low: float = 0.5, high: float = 5.0) -> Array:
    """w where low <= w <= high, else 0 (Ling Team 2025, "Every Step Evolves")."""
    weights = decoupled(logp, batch)
    return jnp.where(_within(weights, low, high), weights, 0.0)


def product_weight(logp: Array, batch: Batch, *, cutoff: float = 2.0) -> Array:
    """W where W <= cutoff, else 0: masked importance sampling by sequence (Liu et al. 2025, "When Speed Kills
    Stability")."""
    product = _product(batch)
    return jnp.where(product <= cutoff, product, 0.0)


def product_gate(logp: Array, batch: Batch, *, low: float = 0.5, cutoff: float = 2.0) -> Array:
    """1 where low <= W <= cutoff, else 0: the gate of `product_weight` without its weight, and from both sides, as verl
    has it (pull request 3984): what has become unlikely, unweighted, would be unlearned again and again."""
    return _within(_product(batch), low, cutoff).astype(logp.dtype)


def sequence_tis(logp: Array, batch: Batch, *, cap: float = 2.0) -> Array:
    """min(W, cap): truncated importance sampling by sequence (Liu et al. 2025, as `product_weight`)."""
    return jnp.minimum(_product(batch), cap)


def geometric_gate(logp: Array, batch: Batch, *, low: float = 0.9, high: float = 1.1) -> Array:
    """1 where low <= g <= high, else 0: rejection by the geometric mean (Liu et al. 2025, as `product_weight`)."""
    return _within(jnp.exp(sequence_means(_log_weight(batch), batch)), low, high).astype(logp.dtype)


def opsm(logp: Array, batch: Batch, *, delta: float = 0.05) -> Array:
    """0 where A < 0 and the sequence's mean of behaviour_logp − logp is above delta, else 1: off-policy
    sequence masking (DeepSeek-AI 2025, "DeepSeek-V3.2", which leaves delta open)."""
    drift = sequence_means(log_ratio(batch["behaviour_logp"], logp, batch["mask"]), batch)
    return jnp.where((batch["advantages"] < 0) & (drift > delta), 0.0, 1.0).astype(logp.dtype)


def a3po(logp: Array, batch: Batch) -> Array:
    """w to an old_logp that is not computed but put between: log π_old = α log π_behaviour + (1 − α) log π,
    α = 1 / staleness, 0 where fresh (Li et al. 2025, "A-3PO"). It replaces the batch's "old_logp"."""
    return decoupled(logp, batch)


def a3po_logp(logp: Array, batch: Batch) -> Array:
    """The old_logp of `a3po`, [R, T], without gradient."""
    late = batch["staleness"].astype(logp.dtype)
    alpha = jnp.where(late > 0, 1.0 / jnp.maximum(late, 1.0), 0.0)
    return jax.lax.stop_gradient(alpha * batch["behaviour_logp"] + (1.0 - alpha) * logp)


_ALL: tuple[Callable[..., Array], ...] = (
    decoupled, token_tis, icepop, product_weight, product_gate, sequence_tis, geometric_gate, opsm, a3po,
)  # fmt: skip
CORRECTIONS: Mapping[str, Callable[..., Array]] = {fn.__name__: fn for fn in _ALL}


def check_corrections(corrections: Corrections) -> None:
    """Raises UsageError unless each is one of CORRECTIONS, with options that it takes."""
    for name, options in corrections.items():
        if name not in CORRECTIONS:
            near = did_you_mean(name, list(CORRECTIONS))
            raise UsageError(f"there is no correction {name!r}.{near} There are: {', '.join(CORRECTIONS)}")
        if not isinstance(options, Mapping):
            raise UsageError(f"correction {name!r} has {options!r}; expected a table of its options, such as {{}}")
        parameters = list(inspect.signature(CORRECTIONS[name]).parameters.values())[2:]
        taken = {parameter.name: parameter.default for parameter in parameters}
        for option, value in options.items():
            if option not in taken:
                near = did_you_mean(option, list(taken))
                raise UsageError(
                    f"correction {name!r} takes no {option!r}.{near} It takes: {', '.join(taken) or 'nothing'}"
                )
            check_number(f"correction {name!r}: {option!r}", value, taken[option])
        if "low" in taken:
            (_, low), (edge, high) = {**taken, **options}.items()
            if low > high:
                raise UsageError(f"correction {name!r} keeps nothing: its low, {low}, is above {edge}, {high}")


def needs_proximal(corrections: Corrections) -> bool:
    """Whether what is corrected for is nothing where old_logp is the behaviour's."""
    return bool(set(corrections) - {"a3po", "opsm"}) and "a3po" not in corrections


def correct(logp: Array, batch: Batch, corrections: Corrections) -> tuple[Batch, Array, Metrics]:
    """Applies all of them at once.

    Returns:
        The batch (its "old_logp" is another with `a3po`), the product of the weights [R, T], and the
        metrics "kept/NAME" and "rejected/NAME", shares of the trained tokens.
    """
    if "a3po" in corrections:
        batch = {**batch, "old_logp": a3po_logp(logp, batch)}
    weights, metrics = jnp.ones_like(logp), dict[str, tuple[Array, Array]]()
    for name, options in corrections.items():
        each = jax.lax.stop_gradient(CORRECTIONS[name](logp, batch, **options))
        weights = weights * each
        metrics |= token_means({f"kept/{name}": each > 0, f"rejected/{name}": each <= 0}, batch["mask"])
    return batch, weights, metrics


def _log_weight(batch: Batch) -> Array:
    return log_ratio(batch["old_logp"], batch["behaviour_logp"], batch["mask"])


def _product(batch: Batch) -> Array:
    return jnp.exp(sequence_sums(_log_weight(batch), batch))


def _within(values: Array, low: float, high: float) -> Array:
    return (low <= values) & (values <= high)
