"""A policy-gradient algorithm from its one formula: `policy_gradient` adds what goes with all of them.

The formula is an `Objective`: what each token loses. Around it: corrections, dual clip, the denominator,
KL to a reference, entropy, metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from tunix_core.algorithms.corrections import Corrections, check_corrections, correct, needs_proximal
from tunix_core.algorithms.losses import (
    Aggregate,
    check_aggregate,
    clipped_surrogate,
    k1,
    k3,
    masked_sum,
    token_ratio,
    token_weights,
    trained_sequences,
)
from tunix_core.algorithms.metrics import held, policy_metrics, token_means
from tunix_core.algorithms.normalisation import OverStep
from tunix_core.algorithms.reference import (
    KL_WEIGHT,
    Estimator,
    adaptive_weight,
    check_estimator,
    penalised_tokens,
    reference_kl,
    score_costs,
)
from tunix_core.contracts import Algorithm, LossTerms, Outcome
from tunix_core.errors import UsageError, check_number, did_you_mean

Array = jax.Array
Batch = Mapping[str, Any]
Advantages = Callable[[np.ndarray], np.ndarray]
Scores = Callable[[Sequence[Outcome]], np.ndarray]


class Objective(NamedTuple):
    """What a formula says of each token; arrays [R, T].

    Attributes:
        loss: float32; what is minimised, before corrections.
        ratio: float32; for the metrics.
        low, high: bool; where the gradient is held because the ratio is too low or too high.
    """

    loss: Array
    ratio: Array
    low: Array
    high: Array


Formula = Callable[[Array, Batch], Objective]


class Shared(TypedDict, total=False):
    """The options that every policy gradient takes; `SHARED` has their defaults.

    Attributes:
        corrections: of CORRECTIONS, by name, each with its options; their weights multiply a token's loss.
        kl: how KL(policy ‖ reference) is estimated: k1, k2, k3, k1_corrected or k3_corrected.
        kl_weight: how much that KL counts, >= 0.
        kl_in: "loss", or "reward": then it is a cost on the score.
        kl_target: the KL of a token to which kl_weight adapts, by the mean of k3; None: kl_weight stays.
        entropy_weight: how much a token's entropy is worth.
        dual_clip: where A < 0 a token loses at most −A times this, > 1; None: no bound.
    """

    corrections: Corrections
    kl: Estimator
    kl_weight: float
    kl_in: str
    kl_target: float | None
    entropy_weight: float
    dual_clip: float | None


SHARED: Mapping[str, Any] = {
    "corrections": {},
    "kl": "k3_corrected",
    "kl_weight": 0.0,
    "kl_in": "loss",
    "kl_target": None,
    "entropy_weight": 0.0,
    "dual_clip": None,
}


def clip_objective(eps_low: float, eps_high: float, ratio_of: Callable[[Array, Batch], Array] = token_ratio) -> Formula:
    """max(−A ρ, −A clip(ρ, 1 − eps_low, 1 + eps_high)); ρ = `ratio_of`(logp, batch)."""

    def formula(logp: Array, batch: Batch) -> Objective:
        ratio, advantages = ratio_of(logp, batch), batch["advantages"]
        loss = clipped_surrogate(ratio, advantages, eps_low, eps_high)
        return Objective(loss, ratio, *held(ratio, advantages, eps_low, eps_high))

    return formula


def ratio_objective(logp: Array, batch: Batch) -> Objective:
    """−A ρ, without a clip."""
    ratio = token_ratio(logp, batch)
    nowhere = jnp.zeros_like(ratio, bool)
    return Objective(-batch["advantages"] * ratio, ratio, nowhere, nowhere)


def policy_gradient(
    id: str,
    advantages: Advantages,
    formula: Formula,
    *,
    aggregate: Aggregate = "token",
    length: float | None = None,
    idle_at_zero: bool = True,
    needs_reference: bool = False,
    scores: Scores | None = None,
    over_step: OverStep | None = None,
    cost_by_token: bool = False,
    **shared: Any,
) -> Algorithm:
    """The algorithm whose tokens lose what `formula` says.

    Args:
        advantages: float64 scores [G] of a group -> float64 [G].
        aggregate: "token": mean over trained tokens; "sequence": mean over samples of their token means.
        length: instead of `aggregate`: Σ over tokens / (samples · length).
        idle_at_zero: the formula loses nothing, and has no gradient, where A = 0.
        needs_reference: the formula reads batch["reference_logp"].
        scores, over_step: as in contracts.Algorithm.
        cost_by_token: with kl_in = "reward", a token bears the cost from it on, not its whole score.
        **shared: the options of `Shared`.

    Raises:
        UsageError: an option that is not one of `Shared`, or its value.
    """
    check_aggregate(aggregate)
    recipe = _Recipe(formula, aggregate, length, needs_reference, **_checked(id, shared))
    if recipe.kl_in_reward:
        scores, over_step = _with_cost(recipe, scores, over_step, cost_by_token)
    return Algorithm(
        id,
        advantages,
        partial(_loss, recipe),
        needs_entropy=recipe.entropy_weight != 0,
        idle_at_zero=idle_at_zero and not recipe.kl_in_loss and not recipe.entropy_weight,
        needs_reference=recipe.reads_reference,
        needs_proximal=needs_proximal(recipe.corrections),
        scores=scores,
        over_step=over_step,
        adaptive=(adaptive_weight(recipe.kl_weight, recipe.kl_target),) if recipe.kl_target else (),
    )


@dataclass(frozen=True, slots=True)
class _Recipe:
    """A formula and all that goes with it; the names are those of `policy_gradient` and `Shared`."""

    formula: Formula
    aggregate: Aggregate
    length: float | None
    needs_reference: bool
    corrections: Corrections
    kl: Estimator
    kl_weight: float
    kl_in: str
    kl_target: float | None
    entropy_weight: float
    dual_clip: float | None

    @property
    def reads_reference(self) -> bool:
        return self.needs_reference or self.kl_weight > 0

    @property
    def kl_in_loss(self) -> bool:
        return self.kl_weight > 0 and self.kl_in == "loss"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl_weight > 0 and self.kl_in == "reward"


def _loss(recipe: _Recipe, logp: Array, batch: Batch) -> LossTerms:
    batch, weights, metrics = correct(logp, batch, recipe.corrections)
    objective = recipe.formula(logp, batch)
    loss = objective.loss
    if recipe.dual_clip is not None:
        loss = _dual_clipped(loss, batch["advantages"], recipe.dual_clip)
    loss = loss * weights
    if recipe.kl_in_loss:
        kl_weight = batch[KL_WEIGHT] if recipe.kl_target else recipe.kl_weight
        loss = loss + kl_weight * reference_kl(logp, batch, recipe.kl)
    if recipe.entropy_weight:
        loss = loss - recipe.entropy_weight * batch["entropy"]
    if recipe.reads_reference:
        metrics |= _reference_metrics(logp, batch)
    metrics |= policy_metrics(logp, objective.ratio, objective.low, objective.high, batch)
    largest = jnp.max(jnp.where(batch["mask"] > 0, objective.ratio, 0.0))
    return LossTerms(*_reduced(recipe, loss, batch), metrics, {"ratio_max": jax.lax.stop_gradient(largest)})


def _checked(id: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    for name in shared:
        if name not in SHARED:
            near = did_you_mean(name, list(SHARED))
            raise UsageError(f"{id} takes no option {name!r}.{near} `tunix hub show {id}` lists what it takes")
        check_number(f"{id}: option {name!r}", shared[name], SHARED[name])
    options = {**SHARED, **shared}
    check_corrections(options["corrections"])
    check_estimator(options["kl"])
    if options["kl_in"] not in ("loss", "reward"):
        raise UsageError(f'kl_in = {options["kl_in"]!r}, expected "loss" or "reward"')
    if options["kl_target"] and not options["kl_weight"] > 0:
        raise UsageError("kl_target adapts kl_weight, which must then start above 0")
    if options["dual_clip"] is not None and options["dual_clip"] <= 1:
        raise UsageError(f"dual_clip = {options['dual_clip']}, expected more than 1")
    return options


def _with_cost(
    recipe: _Recipe, scores: Scores | None, over_step: OverStep | None, by_token: bool
) -> tuple[Scores | None, OverStep]:
    """`scores` and `over_step` with the KL as a cost."""
    cost = {"kl": recipe.kl, "kl_weight": recipe.kl_weight}
    after = over_step or (lambda outcomes: outcomes)
    if by_token:
        return scores, lambda outcomes: after(penalised_tokens(outcomes, **cost))

    def penalised(outcomes: Sequence[Outcome]) -> np.ndarray:
        plain = np.array([o.score for o in outcomes])
        return (plain if scores is None else scores(outcomes)) - score_costs(outcomes, **cost)

    return penalised, after


def _dual_clipped(loss: Array, advantages: Array, most: float) -> Array:
    """Where A < 0: min(loss, −A · most) (Ye et al. 2020, "Mastering Complex Control in MOBA Games")."""
    return jnp.where(advantages < 0, jnp.minimum(loss, -advantages * most), loss)


def _reduced(recipe: _Recipe, loss: Array, batch: Batch) -> tuple[Array, Array]:
    """(numerator, denominator) of the loss of the batch."""
    if recipe.length is not None:
        return masked_sum(loss, batch["mask"]), trained_sequences(batch) * recipe.length
    weights = token_weights(batch, recipe.aggregate)
    return masked_sum(loss, weights), jnp.sum(weights)


def _reference_metrics(logp: Array, batch: Batch) -> Mapping[str, tuple[Array, Array]]:
    reference = batch["reference_logp"]
    return token_means({"reference_k1": k1(logp, reference), "reference_k3": k3(logp, reference)}, batch["mask"])
