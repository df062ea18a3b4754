"""Batched inference over token ids.

Takes requests of token ids; gives token ids, log-probabilities and the policy version of each. Does not know
text beyond stop strings, conversations or environments.
"""

from __future__ import annotations

from tunix_core.engine.engine import SlotEngine, make_engine

__all__ = ["SlotEngine", "make_engine"]
