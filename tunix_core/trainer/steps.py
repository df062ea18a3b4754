"""The two jitted functions of a training step, pure over parameters and optimizer state.

A loss is Σ numerator / Σ denominator over the whole step. `make_accumulate` adds one micro-batch's
gradient of the numerator, and its sums; `make_update` divides once, clips, and steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tunix_core.algorithms import masked_sum
from tunix_core.contracts import Algorithm, LossTerms, Model, Params, Remat
from tunix_core.trainer.logprobs import token_logprobs
from tunix_core.trainer.parts import Parts
from tunix_core.trainer.placing import HERE, Placing

Array = jax.Array
Arrays = Mapping[str, Any]
Sum = tuple[Array, Array]  # (sum, count)


class Sums(NamedTuple):
    """What micro-batches add up to, for one loss.

    Attributes:
        gradient: of the numerator; a pytree like the trained parameters.
        numerator, denominator: scalars.
        metrics: (sum, count) by name.
        maxima: scalars >= 0 by name.
    """

    gradient: Params
    numerator: Array
    denominator: Array
    metrics: dict[str, Sum]
    maxima: dict[str, Array]


class Report(NamedTuple):
    """What an update tells: `applied` is 0 when the step was skipped, `broken` 1 when that was for its gradient."""

    gradient_norm: Array
    learning_rate: Array
    applied: Array
    broken: Array
    numerators: dict[str, Array]
    denominators: dict[str, Array]
    metrics: dict[str, dict[str, Sum]]
    maxima: dict[str, dict[str, Array]]


Zeros = Callable[[Arrays], Sums]
Add = Callable[[Sums, Parts, Arrays], Sums]


class Accumulate(NamedTuple):
    """One loss's part of a step. `batch` has the arrays of types.Batch and what the loss needs besides.

    Attributes:
        zeros: batch -> zero sums for a batch of these shapes.
        add: (sums, parts, batch) -> sums with the batch's added. Jitted; the sums given are donated.
        count: (denominator, batch) -> the denominator with the batch's added, nothing else computed:
            for samples that have no gradient. Jitted.
    """

    zeros: Zeros
    add: Add
    count: Callable[[Array, Arrays], Array]


Update = Callable[..., tuple[Params, Any, Array, dict[str, Sums], Report]]
Terms = Callable[[Params, Arrays], LossTerms]


def forward_arrays(batch: Arrays) -> dict[str, Any]:
    """What log-probabilities and values depend on."""
    names = ("tokens", "positions", "before", "seen_until", "mask", "temperature")
    return {name: batch[name] for name in names}


def token_values(model: Model, params: Mapping[str, Params], batch: Arrays, remat: Remat) -> Array:
    """The critic's value of the state in which each token was chosen: float32 [R, T]; masked where there is none.

    Args:
        params: "trunk", parameters of `model`, and its "head" [D] and "bias".
    """
    hidden = model.forward(params["trunk"], batch["tokens"], batch["positions"], batch["seen_until"], remat)
    values = hidden.astype(jnp.float32) @ params["head"] + params["bias"]
    return jnp.take_along_axis(values, batch["before"], axis=1)


def make_accumulate(
    model: Model,
    algorithm: Algorithm,
    parts: Parts,
    old_logp: str = "behaviour",
    remat: Remat = "none",
    placing: Placing = HERE,
) -> Accumulate:
    """What accumulates an algorithm's micro-batches. `batch` also has "fresh", bool, and "staleness" [R, T].

    Args:
        parts: parameters like those to come.
        old_logp: "behaviour", or "proximal": the batch's "old_logp", or without one, since nothing was
            updated yet, the log-probabilities themselves.
        remat: as in `Model.forward`.
    """

    def terms_of(logp: Array, batch: Arrays) -> LossTerms:
        old = batch["behaviour_logp"] if old_logp == "behaviour" else jax.lax.stop_gradient(logp)
        return algorithm.loss(logp, {"old_logp": old, **batch, "sequences": logp.size})

    def terms(params: Params, batch: Arrays) -> LossTerms:
        logp, entropy = token_logprobs(model, params, batch, remat=remat, entropy_slope=algorithm.needs_entropy)
        found = terms_of(logp, {**batch, "entropy": entropy})
        gap = jnp.where(batch["fresh"], jnp.abs(logp - batch["behaviour_logp"]), 0.0)
        own: dict[str, Sum] = {
            "entropy": (masked_sum(entropy, batch["mask"]), jnp.sum(batch["mask"])),
            "agreement_mean": (jnp.sum(gap), jnp.sum(batch["fresh"], dtype=jnp.float32)),
        }
        maxima = {"agreement_max": jnp.max(gap), **found.maxima}
        return found._replace(metrics={**own, **found.metrics}, maxima=maxima)

    def count(denominator: Array, batch: Arrays) -> Array:
        unused = dict.fromkeys(("entropy", "reference_logp"), jnp.zeros_like(batch["behaviour_logp"]))
        return denominator + terms_of(batch["behaviour_logp"], {**unused, **batch}).denominator

    counting = placing.jit(count, lambda whole: whole)
    zeros, add = accumulation(terms, parts, placing)
    return Accumulate(zeros, add, lambda denominator, batch: counting(denominator, placing.batch(batch)))


def accumulation(terms: Terms, parts: Parts, placing: Placing) -> tuple[Zeros, Add]:
    """`zeros` and `add` of `Accumulate` for any loss of parameters like those of `parts` and a batch."""

    def numerator(trained: Params, parts: Parts, batch: Arrays) -> tuple[Array, Sums]:
        found = terms(parts.having(trained).whole, batch)
        return found.numerator, Sums(None, found.numerator, found.denominator, dict(found.metrics), dict(found.maxima))

    def add(sums: Sums, parts: Parts, batch: Arrays) -> Sums:
        (_, one), gradient = jax.value_and_grad(numerator, has_aux=True)(parts.trained, parts, batch)
        total = jax.tree.map(jnp.add, sums, one._replace(gradient=gradient))
        return total._replace(maxima=jax.tree.map(jnp.maximum, sums.maxima, one.maxima))

    def zeros(batch: Arrays) -> Sums:
        _, shapes = jax.eval_shape(numerator, parts.trained, parts, batch)
        shapes = shapes._replace(gradient=parts.trained)
        return placing.jit(lambda: jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes), lies)()

    lies = partial(sums_lie, placing.shardings(parts.trained))
    adding = placing.jit(add, lies, donate_argnums=0)
    return zeros, lambda sums, parts, batch: adding(sums, parts, placing.batch(batch))


def sums_lie(params: Any, whole: Any) -> Sums:
    """The shardings of `Sums`, given those of the parameters."""
    return Sums(params, whole, whole, whole, whole)


def make_update(
    optimizer: optax.GradientTransformation, schedule: optax.Schedule, lies: Callable[[Any], Any], placing: Placing
) -> Update:
    """The jitted optimizer step.

    (params, optimizer state, updates taken, sums by algorithm, share by algorithm) -> (new params, new
    state, new count, zero sums, report). The gradient is Σ share · Σ gradient / Σ denominator. Without
    a denominator, or with a gradient that is not finite, nothing changes. State and sums are donated;
    the old parameters are not, since an engine may still read them.

    Args:
        lies: the sharding of what is whole -> that of everything an update gives.
    """

    def update(params: Params, state: Any, taken: Array, sums: dict[str, Sums], shares: Mapping[str, Any]) -> Any:
        scales = {k: shares[k] / jnp.where(s.denominator > 0, s.denominator, 1.0) for k, s in sums.items()}
        parts = [jax.tree.map(lambda g, scale=scales[k]: g * scale, s.gradient) for k, s in sums.items()]
        gradient = jax.tree.map(lambda *g: sum(g[1:], g[0]), *parts)
        norm = optax.tree.norm(gradient)
        finite, trained = jnp.isfinite(norm), ~(sum(s.denominator for s in sums.values()) <= 0)
        good = finite & trained
        steps, stepped = optimizer.update(gradient, state, params)
        report = Report(
            norm,
            jnp.asarray(schedule(taken), jnp.float32),
            good,
            trained & ~finite,
            {k: s.numerator for k, s in sums.items()},
            {k: s.denominator for k, s in sums.items()},
            {k: s.metrics for k, s in sums.items()},
            {k: s.maxima for k, s in sums.items()},
        )
        params, state = jax.tree.map(  # in the types they had: gradients are float32, whatever the parameters are
            lambda new, old: jnp.where(good, new.astype(old.dtype), old),
            (optax.apply_updates(params, steps), stepped),
            (params, state),
        )
        return params, state, taken + good, jax.tree.map(jnp.zeros_like, sums), report

    return placing.jit(update, lies, donate_argnums=(1, 3))
