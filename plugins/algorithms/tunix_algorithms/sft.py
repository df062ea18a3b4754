"""Supervised learning on the tokens of transcripts, whatever they scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tunix_core.algorithms import Algorithm, LossTerms, masked_sum


def make_sft() -> Algorithm:
    """−Σ logp / number of trained tokens: maximum likelihood."""

    def advantages(scores: np.ndarray) -> np.ndarray:
        return np.ones_like(scores, np.float64)

    def loss(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
        return LossTerms(masked_sum(-logp, batch["mask"]), jnp.sum(batch["mask"]), {})

    return Algorithm("algorithms/sft", advantages, loss)
