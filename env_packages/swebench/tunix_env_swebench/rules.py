"""When a problem counts as resolved: the official rules over the status of each test.

A status is one of PASSED, FAILED, ERROR, SKIPPED, XFAIL; a test that never ran has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunix_env_swebench.rows import Row

PASSING = frozenset({"PASSED", "XFAIL"})
MAINTAINED = PASSING | {"SKIPPED"}  # a test that is skipped afterwards is no regression, and no repair either
FAILING = frozenset({"FAILED", "ERROR"})


@dataclass(frozen=True, slots=True)
class Sorted:
    """Test ids by whether they came out as asked."""

    success: tuple[str, ...]
    failure: tuple[str, ...]

    @property
    def share(self) -> float:
        """1 where nothing was asked."""
        asked = len(self.success) + len(self.failure)
        return len(self.success) / asked if asked else 1.0

    def to_dict(self) -> dict[str, list[str]]:
        return {"success": list(self.success), "failure": list(self.failure)}


NOTHING = Sorted((), ())


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a problem's tests came out."""

    fail_to_pass: Sorted
    pass_to_pass: Sorted

    @property
    def resolved(self) -> bool:
        return not self.fail_to_pass.failure and not self.pass_to_pass.failure

    @property
    def share(self) -> float:
        """Repaired share times maintained share: 0 for doing nothing, 1 when resolved."""
        return self.fail_to_pass.share * self.pass_to_pass.share

    def to_dict(self) -> dict[str, Any]:
        """`tests_status` of the official report."""
        lists = {"FAIL_TO_PASS": self.fail_to_pass, "PASS_TO_PASS": self.pass_to_pass}
        return {
            name: each.to_dict() for name, each in {**lists, "FAIL_TO_FAIL": NOTHING, "PASS_TO_FAIL": NOTHING}.items()
        }


def judge(row: Row, statuses: Mapping[str, str]) -> Outcome:
    """The outcome of a row's tests.

    A FAIL_TO_PASS test must pass (or fail as expected); a PASS_TO_PASS test may be skipped as well. A test
    without a status failed, unless the row's parser only records failures.
    """
    return Outcome(
        _sorted(row, row.fail_to_pass, statuses, PASSING), _sorted(row, row.pass_to_pass, statuses, MAINTAINED)
    )


def unrun(row: Row) -> Outcome:
    """The outcome where no test counts: all failed."""
    return Outcome(Sorted((), row.fail_to_pass), Sorted((), row.pass_to_pass))


def _sorted(row: Row, cases: Sequence[str], statuses: Mapping[str, str], good: frozenset[str]) -> Sorted:
    def fine(case: str) -> bool:
        if row.fail_only:
            return statuses.get(case) != "FAILED"
        return status_of(case, statuses) in good

    return Sorted(tuple(c for c in cases if fine(c)), tuple(c for c in cases if not fine(c)))


def status_of(case: str, statuses: Mapping[str, str]) -> str | None:
    """A test's status. An id that the data set cut off inside its brackets stands for those that begin
    with it, where these agree on whether they passed."""
    if case in statuses:
        return statuses[case]
    if case.count("[") <= case.count("]"):
        return None
    found = [status for name, status in statuses.items() if name.startswith(case)]
    return found[0] if len({status in PASSING for status in found}) == 1 else None


def report(row: Row, outcome: Outcome | None, *, patch: str | None, applied: bool) -> dict[str, Any]:
    """What the official harness writes into an instance's report.json.

    Args:
        outcome: None where no test was run.
        patch: what was submitted; None where nothing was.
        applied: whether it could be applied.
    """
    content: dict[str, Any] = {
        "patch_is_None": patch is None,
        "patch_exists": patch is not None,
        "patch_successfully_applied": applied,
        "resolved": outcome is not None and outcome.resolved,
        "infra_failure": False,
    }
    return {row.instance_id: content if outcome is None else {**content, "tests_status": outcome.to_dict()}}
