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
from tunix_core.contracts import Algorithm, LossTerms, Model, Params

Array = jax.Array
Arrays = Mapping[str, Any]
Sum = tuple[Array, Array]  # (sum, count)


class Sums(NamedTuple):
    """What micro-batches add up to, for one algorithm.

    Attributes:
        gradient: of the numerator; a pytree like the parameters.
        numerator, denominator: scalars.
        metrics: (sum, count) by name.
        gap_max: the largest |Δ log-probability| to the engine over fresh tokens.
    """

    gradient: Params
    numerator: Array
    denominator: Array
    metrics: dict[str, Sum]
    gap_max: Array


class Report(NamedTuple):
    """What an update tells: `applied` is 0 when the step was skipped."""

    gradient_norm: Array
    learning_rate: Array
    applied: Array
    numerators: dict[str, Array]
    denominators: dict[str, Array]
    metrics: dict[str, dict[str, Sum]]
    gap_max: Array


class Accumulate(NamedTuple):
    """One algorithm's part of a step. `batch` has the arrays of types.Batch and "fresh", bool [R, T].

    Attributes:
        zeros: (params, batch) -> zero sums for a batch of these shapes.
        add: (sums, params, batch) -> sums with the batch's added. Jitted; the sums given are donated.
        count: (denominator, batch) -> the denominator with the batch's added, nothing else computed:
            for samples that have no gradient. Jitted.
    """

    zeros: Callable[[Params, Arrays], Sums]
    add: Callable[[Sums, Params, Arrays], Sums]
    count: Callable[[Array, Arrays], Array]


Update = Callable[..., tuple[Params, Any, Array, dict[str, Sums], Report]]


def token_logprobs(model: Model, params: Params, batch: Arrays) -> tuple[Array, Array]:
    """Each token's log-probability given what precedes it in its segment, and the entropy there.

    Of the distribution at the temperature the token's suite samples with. float32 [R, T] each; the
    first token of a segment has no such probability: what stands there is masked.
    """
    hidden = model.forward(params, batch["tokens"], batch["positions"], batch["segment_ids"])
    logits = model.logits(params, hidden[:, :-1]) / batch["temperature"][:, 1:, None]
    total = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, batch["tokens"][:, 1:, None], axis=-1)[..., 0]
    entropy = total - jnp.sum(jnp.exp(logits - total[..., None]) * logits, axis=-1)
    first = ((0, 0), (1, 0))
    return jnp.pad(chosen - total, first), jnp.pad(entropy, first)


def make_accumulate(model: Model, algorithm: Algorithm) -> Accumulate:
    """What accumulates an algorithm's micro-batches."""

    def terms_of(logp: Array, batch: Arrays) -> LossTerms:
        given = {"entropy": jnp.zeros_like(logp), **batch, "old_logp": batch["behaviour_logp"], "sequences": logp.size}
        return algorithm.loss(logp, given)

    def numerator(params: Params, batch: Arrays) -> tuple[Array, Sums]:
        logp, entropy = token_logprobs(model, params, batch)
        terms = terms_of(logp, {**batch, "entropy": entropy})
        gap = jnp.where(batch["fresh"], jnp.abs(logp - batch["behaviour_logp"]), 0.0)
        own: dict[str, Sum] = {
            "entropy": (masked_sum(entropy, batch["mask"]), jnp.sum(batch["mask"])),
            "agreement_mean": (jnp.sum(gap), jnp.sum(batch["fresh"], dtype=jnp.float32)),
        }
        sums = Sums(None, terms.numerator, terms.denominator, {**own, **terms.metrics}, jnp.max(gap))
        return terms.numerator, sums

    def add(sums: Sums, params: Params, batch: Arrays) -> Sums:
        (_, one), gradient = jax.value_and_grad(numerator, has_aux=True)(params, batch)
        total = jax.tree.map(jnp.add, sums._replace(gap_max=0.0), one._replace(gradient=gradient, gap_max=0.0))
        return total._replace(gap_max=jnp.maximum(sums.gap_max, one.gap_max))

    def zeros(params: Params, batch: Arrays) -> Sums:
        _, shapes = jax.eval_shape(numerator, params, batch)
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes._replace(gradient=params))

    def count(denominator: Array, batch: Arrays) -> Array:
        return denominator + terms_of(batch["behaviour_logp"], batch).denominator

    return Accumulate(zeros, jax.jit(add, donate_argnums=0), jax.jit(count))


def make_update(optimizer: optax.GradientTransformation, schedule: optax.Schedule) -> Update:
    """The jitted optimizer step.

    (params, optimizer state, updates taken, sums by algorithm, share by algorithm) -> (new params, new
    state, new count, zero sums, report). The gradient is Σ share · Σ gradient / Σ denominator. Without
    a denominator, or with a gradient that is not finite, nothing changes. State and sums are donated;
    the old parameters are not, since an engine may still read them.
    """

    @partial(jax.jit, donate_argnums=(1, 3))
    def update(params: Params, state: Any, taken: Array, sums: dict[str, Sums], shares: Mapping[str, Any]) -> Any:
        scales = {k: shares[k] / jnp.where(s.denominator > 0, s.denominator, 1.0) for k, s in sums.items()}
        parts = [jax.tree.map(lambda g, scale=scales[k]: g * scale, s.gradient) for k, s in sums.items()]
        gradient = jax.tree.map(lambda *g: sum(g[1:], g[0]), *parts)
        norm = optax.tree.norm(gradient)
        good = jnp.isfinite(norm) & (sum(s.denominator for s in sums.values()) > 0)
        steps, stepped = optimizer.update(gradient, state, params)
        report = Report(
            norm,
            jnp.asarray(schedule(taken), jnp.float32),
            good,
            {k: s.numerator for k, s in sums.items()},
            {k: s.denominator for k, s in sums.items()},
            {k: s.metrics for k, s in sums.items()},
            jnp.max(jnp.stack([s.gap_max for s in sums.values()])),
        )
        params, state = jax.tree.map(
            partial(jnp.where, good), (optax.apply_updates(params, steps), stepped), (params, state)
        )
        return params, state, taken + good, jax.tree.map(jnp.zeros_like, sums), report

    return update
