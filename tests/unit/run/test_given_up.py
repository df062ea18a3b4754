"""Calls that hang are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tunix_core.run.given_up import given_up


def test_what_was_given_up_and_hangs_is_told() -> None:
    class Opener:
        def statistics(self) -> dict[str, float]:
            return {"opened": 9.0, "abandoned_threads": 2.0, "uncancelled_calls": 1.0, "close_timeouts": 3.0}

    suites: Any = {"s": SimpleNamespace(opener=Opener())}
    assert given_up(suites) == {
        "abandoned/tools": 0.0,
        "abandoned/rewards": 0.0,
        "suite/s/abandoned_threads": 2.0,
        "suite/s/uncancelled_calls": 1.0,
        "suite/s/close_timeouts": 3.0,
    }
