"""The check finds each broken law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.algorithms import centred, clip_objective, masked_sum, normalised, policy_gradient
from tunix_core.contracts import Algorithm, LossTerms, Outcome
from tunix_core.testing.algorithms import check_algorithm


def reinforce(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
    return LossTerms(masked_sum(-batch["advantages"] * logp, batch["mask"]), jnp.sum(batch["mask"]), {})


def micro_batch_mean(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
    terms = reinforce(logp, batch)
    return LossTerms(terms.numerator / terms.denominator, jnp.float32(1), {})


def unmasked(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
    return LossTerms(jnp.sum(-batch["advantages"] * logp), jnp.sum(batch["mask"]), {})


def leaking(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
    terms = reinforce(logp, batch)
    return terms._replace(numerator=terms.numerator + 1e-6 * jnp.sum(logp))


def row_mean(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
    per_row = jnp.sum(-batch["advantages"] * jnp.where(batch["mask"] > 0, logp, 0.0), axis=1)
    return LossTerms(jnp.sum(per_row / jnp.maximum(batch["mask"].sum(1), 1)), jnp.sum(batch["mask"]), {})


def with_entropy(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
    terms = reinforce(logp, batch)
    return terms._replace(numerator=terms.numerator + 0.1 * masked_sum(logp, batch["mask"]))


def first_as_baseline(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [replace(o, advantages=o.advantages - outcomes[0].advantages[0]) for o in outcomes]


def one_for_each(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [replace(o, advantages=o.advantages[:1]) for o in outcomes]


def test_a_sound_one_passes() -> None:
    check_algorithm(Algorithm("x/reinforce", centred, reinforce, idle_at_zero=True), shift_invariant=True)
    check_algorithm(Algorithm("x/reinforce", normalised, reinforce), scale_invariant=True, policy_gradient=True)


@pytest.mark.parametrize(
    ("algorithm", "claim", "law"),
    [
        (Algorithm("x/y", lambda s: s * s, reinforce), "shift_invariant", "a shift of a group's scores must change"),
        (Algorithm("x/y", centred, reinforce), "scale_invariant", "scaling a group's scores must change nothing"),
        (
            policy_gradient("x/y", centred, clip_objective(-0.1, -0.1)),
            "policy_gradient",
            r"tokens are held at ratio 1 \(clip_low\)",
        ),
        (
            Algorithm("x/y", centred, lambda logp, batch: reinforce(2.0 * logp, batch)),
            "policy_gradient",
            "at ratio 1 it must be the policy gradient",
        ),
    ],
    ids=["shift", "scale", "held", "twice"],
)
def test_a_claim_that_is_not_so_is_named(algorithm: Algorithm, claim: str, law: str) -> None:
    check_algorithm(algorithm)
    with pytest.raises(AssertionError, match=law):
        check_algorithm(algorithm, **{claim: True})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("over_step", "law"),
    [
        (first_as_baseline, "permuting a step must permute"),
        (one_for_each, r"over_step gives \[\(1,\)"),
        (lambda outcomes: [replace(o, advantages=o.advantages / 0.0) for o in outcomes], "over_step gives"),
    ],
    ids=["first as baseline", "shape", "not finite"],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_broken_law_of_the_whole_step_is_named(over_step: Any, law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_algorithm(Algorithm("x/y", centred, reinforce, over_step=over_step))


@pytest.mark.parametrize(
    ("algorithm", "law"),
    [
        (Algorithm("x/y", centred, micro_batch_mean), "micro-batches must add up"),
        (Algorithm("x/y", centred, unmasked), "what stands at a masked token"),
        (Algorithm("x/y", centred, leaking), "masked token"),
        (Algorithm("x/y", centred, row_mean), "must not depend on packing"),
        (Algorithm("x/y", lambda s: s - s[0], reinforce), "permuting a group"),
        (Algorithm("x/y", lambda s: s[:-1], reinforce), "another shape"),
        (Algorithm("x/y", lambda s: s * np.nan, reinforce), "advantages of"),
        (Algorithm("x/y", centred, with_entropy, idle_at_zero=True), "idle_at_zero"),
    ],
    ids=["micro-batch mean", "unmasked", "leaking", "row mean", "first as baseline", "shape", "nan", "not idle"],
)
def test_a_broken_law_is_named(algorithm: Algorithm, law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_algorithm(algorithm)
