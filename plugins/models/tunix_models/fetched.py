"""Models that are fetched before their first use: `tunix model fetch NAME`."""

from __future__ import annotations

from dataclasses import replace

from jax.sharding import Mesh

from tunix_core.models import Policy, fetched, open_policy


def smollm2_135m(*, dtype: str = "float32", mesh: Mesh | None = None) -> Policy:
    """SmolLM2 135M Instruct, in `dtype`. Raises UsageError, with the command to give, until it is fetched."""
    return _opened("smollm2-135m", dtype, mesh)


def gemma3_270m(*, dtype: str = "float32", mesh: Mesh | None = None) -> Policy:
    """Gemma 3 270M, a base model, in `dtype`. Raises UsageError, with the command to give, until it is fetched."""
    return _opened("gemma3-270m", dtype, mesh)


def _opened(name: str, dtype: str, mesh: Mesh | None) -> Policy:
    return replace(open_policy(fetched(name), dtype, mesh=mesh), id=f"models/{name}")
