"""`models/nano`: a policy small enough for two CPU cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp

from tunix_core.models import Policy, open_policy

DATA = Path(__file__).parent / "data" / "nano"


def load(*, zero_output: bool = False, random: int | None = None) -> Policy:
    """The policy this package ships.

    Args:
        zero_output: set the output layer to zero, so that every token is equally likely.
        random: a seed; the weights are drawn from it instead of read.
    """
    policy = open_policy(DATA)
    params = policy.params if random is None else policy.model.init(random)
    if zero_output:
        params = {**params, "head": jnp.zeros_like(params["head"])}
    return replace(policy, id="models/nano", params=params)
