"""Publishes version n of the parameters; engines pick it up. Reading never waits."""

from __future__ import annotations

from tunix_core.weights.store import WeightStore

__all__ = ["WeightStore"]
