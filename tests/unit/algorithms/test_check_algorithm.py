"""The check finds each broken law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.algorithms import centred, masked_sum
from tunix_core.contracts import Algorithm, LossTerms
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


def test_a_sound_one_passes() -> None:
    check_algorithm(Algorithm("x/reinforce", centred, reinforce, idle_at_zero=True))


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
