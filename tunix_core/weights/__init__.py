"""Publishes version n of the parameters; engines pick it up. Reading never waits."""

from __future__ import annotations

from tunix_core.weights.store import WeightStore, as_it_is, laid, merged

__all__ = ["WeightStore", "as_it_is", "laid", "merged"]
