"""What a run gave up on, and still hangs."""

from __future__ import annotations

from collections.abc import Mapping

from tunix_core.rewards import abandoned_threads
from tunix_core.rollout import Suite
from tunix_core.tools import abandoned_calls

OF_SUITES = ("abandoned_threads", "uncancelled_calls", "close_timeouts")


def given_up(suites: Mapping[str, Suite]) -> dict[str, float]:
    """Calls that were given up and hang: of tools and rewards in this process, and of each suite's environments,
    with the closings that took too long since the run began."""
    row = {"abandoned/tools": float(abandoned_calls()), "abandoned/rewards": float(abandoned_threads())}
    for name, suite in suites.items():
        told = suite.opener.statistics()
        row |= {f"suite/{name}/{what}": told[what] for what in OF_SUITES}
    return row
