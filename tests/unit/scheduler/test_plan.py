"""What a step waits for, as spans name it."""

from __future__ import annotations

from tunix_core.scheduler import Mixture, StepPlan
from tunix_core.types import Group, Task


def group(suite: str, index: int) -> Group:
    return Group(suite, index, Task("t"), ())


def test_a_step_that_takes_none_of_what_waits_says_why() -> None:
    plan = StepPlan(0, Mixture({"a": 1, "b": 1}, 2), 0, {("a", 0): 0, ("a", 1): 0})
    assert plan.barrier([]) == "wait.groups"
    assert plan.barrier([group("a", 1)]) == "wait.staleness", "a place is left, but the older group needs it"
    plan.take("a")
    assert plan.barrier([group("a", 1)]) == "wait.mix"
