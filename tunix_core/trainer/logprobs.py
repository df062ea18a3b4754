"""Log-probabilities and entropies of the trained tokens, without logits of all tokens at once.

A few tokens at a time go through the head, in backward again; tokens that are not trained never do. Does
not know losses or algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from tunix_core.contracts import Model, Params, Remat

Array = jax.Array
AT_ONCE = 512  # tokens whose logits exist at one time


def token_logprobs(
    model: Model, params: Params, batch: Any, *, remat: Remat = "none", entropy_slope: bool = True
) -> tuple[Array, Array]:
    """Each trained token's log-probability given what precedes it, and the entropy there.

    Of the distribution at the temperature the token's suite samples with. float32 [R, T] each; 0 where the
    mask is 0.

    Args:
        batch: what `forward_arrays` names.
        remat: as in `Model.forward`.
        entropy_slope: the entropy has a gradient.
    """
    hidden = model.forward(params, batch["tokens"], batch["positions"], batch["seen_until"], remat)
    order = jnp.argsort(batch["mask"] <= 0, axis=1, stable=True)  # trained ones first
    counts = jnp.sum(batch["mask"] > 0, axis=1)
    states = _along(hidden, _along(batch["before"], order))
    each = max(1, AT_ONCE // len(order))
    head = _Head(model, params, states, entropy_slope)
    asked = (_in_lots(a, each) for a in (states, _along(batch["tokens"], order), _along(batch["temperature"], order)))
    lots = -(-jnp.max(counts) // each)
    logp, entropy, _ = _scores(head, head.read(params), head.rest(params), *asked, lots)
    place = jnp.argsort(order, axis=1)
    trained = batch["mask"] > 0
    logp, entropy = (jnp.moveaxis(a, 0, 1).reshape(len(order), -1) for a in (logp, entropy))
    return jnp.where(trained, _along(logp, place), 0.0), jnp.where(trained, _along(entropy, place), 0.0)


class _Head:
    """`model.logits` as a function of the few arrays that it reads; the same head equals itself.

    Attributes:
        entropy_slope: as in `token_logprobs`.
    """

    def __init__(self, model: Model, params: Params, states: Array, entropy_slope: bool) -> None:
        self.model, self.entropy_slope = model, entropy_slope
        leaves, self._structure = jax.tree.flatten(params)
        program = jax.make_jaxpr(model.logits)(params, states[:1, :1]).jaxpr
        used = {id(v) for equation in program.eqns for v in equation.invars if not isinstance(v, Literal)}
        learned = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
        self._reads = [i for i, v in enumerate(program.invars[: len(leaves)]) if id(v) in used and learned[i]]

    def read(self, params: Params) -> list[Array]:
        """What logits depend on and have a gradient by."""
        leaves = jax.tree.leaves(params)
        return [leaves[i] for i in self._reads]

    def rest(self, params: Params) -> list[Array]:
        reads = set(self._reads)
        return [leaf for i, leaf in enumerate(jax.tree.leaves(params)) if i not in reads]

    def logits(self, read: Sequence[Array], rest: Sequence[Array], states: Array) -> Array:
        leaves, others = dict(zip(self._reads, read, strict=True)), iter(rest)
        whole = [leaves[i] if i in leaves else next(others) for i in range(self._structure.num_leaves)]
        return self.model.logits(jax.tree.unflatten(self._structure, whole), states)


def _score(
    head: _Head, read: list[Array], rest: list[Array], states: Array, targets: Array, temperature: Array, lots: Array
) -> tuple[Array, Array, Array]:
    """states [K, R, E, D], targets and temperature [K, R, E] -> log-probability, entropy, and the logarithm of the
    sum of exp(logits), [K, R, E] each; only the first `lots` of K are computed."""

    def add(at: Array, found: tuple[Array, ...]) -> tuple[Array, ...]:
        logits = head.logits(read, rest, states[at]) / temperature[at][..., None]
        total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, targets[at][..., None], axis=-1)[..., 0] - total
        logp = logits - total[..., None]
        entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
        return tuple(a.at[at].set(b) for a, b in zip(found, (chosen, entropy, total), strict=True))

    nothing = jnp.zeros(targets.shape, jnp.float32)
    return jax.lax.fori_loop(0, lots, add, (nothing, nothing, nothing))


def _forward(head: _Head, *given: Any) -> tuple[tuple[Array, Array, Array], Any]:
    found = _score(head, *given)
    return found, (given, *found[1:])


def _backward(head: _Head, kept: Any, slopes: tuple[Array, Array, Array]) -> tuple[Any, ...]:
    """d logp / d logits = onehot − p, d entropy / d logits = −p (log p + entropy), both over the temperature.

    The head's gradient is summed in float32: in the weights' own dtype each lot would be rounded away by those before.
    """
    (read, rest, states, targets, temperature, lots), entropy, total = kept

    def add(at: Array, found: tuple[Any, Array]) -> tuple[Any, Array]:
        heat = temperature[at][..., None]
        logits, back = jax.vjp(lambda read, x: head.logits(read, rest, x), read, states[at])
        logp = logits / heat - total[at][..., None]
        chosen = jnp.arange(logits.shape[-1]) == targets[at][..., None]
        slope = slopes[0][at][..., None] * (chosen - jnp.exp(logp))
        if head.entropy_slope:
            slope -= slopes[1][at][..., None] * jnp.exp(logp) * (logp + entropy[at][..., None])
        by_read, by_state = back((slope / heat).astype(logits.dtype))
        return jax.tree.map(jnp.add, found[0], by_read), found[1].at[at].set(by_state)

    start = [jnp.zeros(leaf.shape, jnp.float32) for leaf in read], jnp.zeros_like(states)
    by_read, by_states = jax.lax.fori_loop(0, lots, add, start)
    by_read = [total.astype(leaf.dtype) for total, leaf in zip(by_read, read, strict=True)]
    return by_read, None, by_states, None, None, None


_scores = jax.custom_vjp(_score, nondiff_argnums=(0,))
_scores.defvjp(_forward, _backward)


def _along(a: Array, columns: Array) -> Array:
    """a [R, T, ...] at columns [R, E], row by row."""
    return jax.vmap(lambda row, at: row[at])(a, columns)


def _in_lots(a: Array, each: int) -> Array:
    """[R, T, ...] -> [K, R, each, ...], the last padded with ones."""
    padding = [(0, 0)] * a.ndim
    padding[1] = 0, -a.shape[1] % each
    padded = jnp.pad(a, padding, constant_values=1)
    return jnp.moveaxis(padded.reshape(a.shape[0], -1, each, *a.shape[2:]), 1, 0)
