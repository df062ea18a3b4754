"""What a step waits for, as spans name it."""

from __future__ import annotations

from collections import Counter

from tunix_core.scheduler import Ledger, Mixture, StepPlan
from tunix_core.types import Group, Task


def group(suite: str, index: int) -> Group:
    return Group(suite, index, Task("t"), ())


def test_a_step_that_takes_none_of_what_waits_says_why() -> None:
    ledger, consumed = Ledger(), Counter({"a": 0, "b": 0})
    ledger.open(("a", 0), 0)
    ledger.open(("a", 1), 0)
    plan = StepPlan(0, Mixture({"a": 1, "b": 1}, 2), 0, ledger, consumed)
    assert plan.barrier([]) == "wait.groups"
    assert plan.barrier([group("a", 1)]) == "wait.staleness", "a place is left, but the older group needs it"
    consumed["a"] += 1
    assert plan.barrier([group("a", 1)]) == "wait.mix"
