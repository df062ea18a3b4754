from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_for_tests import row
from tunix_env_swebench.rules import judge, report, status_of, unrun

STATUSES = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL")
A, B, C = (f"tests/test_it.py::test_{name}" for name in "abc")


@pytest.mark.parametrize(
    ("status", "repairs", "maintains"),
    [
        ("PASSED", True, True),
        ("XFAIL", True, True),
        ("SKIPPED", False, True),
        ("FAILED", False, False),
        ("ERROR", False, False),
        (None, False, False),
    ],
)
def test_what_each_status_means_for_the_two_lists(status: str | None, repairs: bool, maintains: bool) -> None:
    good = {A: "PASSED", B: "PASSED", C: "PASSED"}

    def resolved(case: str) -> bool:
        changed = {**good, case: status} if status else {name: s for name, s in good.items() if name != case}
        return judge(row(), changed).resolved

    assert (resolved(A), resolved(B)) == (repairs, maintains)


@pytest.mark.parametrize(
    ("case", "statuses", "status"),
    [
        ("t[a b", {"t[a b c]": "PASSED"}, "PASSED"),  # cut off inside its brackets
        ("t[a b", {"t[a b c]": "PASSED", "t[a b d]": "XFAIL"}, "PASSED"),  # these agree
        ("t[a b", {"t[a b c]": "PASSED", "t[a b d]": "FAILED"}, None),
        ("t[a b", {"u": "PASSED"}, None),
        ("t[a b", {"t[a b": "FAILED", "t[a b c]": "PASSED"}, "FAILED"),  # a name in full goes first
        ("t[a]", {"t[a]x": "PASSED"}, None),  # not cut off
        ("t", {"tu": "PASSED"}, None),
    ],
)
def test_ids_that_the_data_set_cut_off(case: str, statuses: dict[str, str], status: str | None) -> None:
    assert status_of(case, statuses) == status


def test_where_only_failures_are_seen_an_absent_test_passed() -> None:
    seen = row(eval_type="fail_only")
    assert judge(seen, {}).resolved
    assert not judge(seen, {A: "FAILED"}).resolved and not judge(seen, {B: "FAILED"}).resolved


def test_the_share_is_nothing_for_doing_nothing() -> None:
    assert judge(row(), {A: "FAILED", B: "PASSED", C: "PASSED"}).share == 0
    assert judge(row(), {A: "PASSED", B: "PASSED", C: "FAILED"}).share == 0.5
    assert judge(row(), {A: "PASSED", B: "PASSED", C: "SKIPPED"}).share == 1
    assert unrun(row()).share == 0


@given(st.dictionaries(st.sampled_from([A, B, C, "other"]), st.sampled_from(STATUSES)))
def test_every_asked_test_is_in_one_list_and_a_full_share_is_resolved(statuses: dict[str, str]) -> None:
    outcome = judge(row(), statuses)
    for asked, lists in (({A}, outcome.fail_to_pass), ({B, C}, outcome.pass_to_pass)):
        assert set(lists.success) | set(lists.failure) == asked and not set(lists.success) & set(lists.failure)
    assert (outcome.share == 1) == outcome.resolved and 0 <= outcome.share <= 1


def test_the_report_is_the_official_one() -> None:
    outcome = judge(row(), {A: "PASSED", B: "PASSED", C: "FAILED"})
    assert report(row(), outcome, patch="diff", applied=True) == {
        "owner__it-1": {
            "patch_is_None": False,
            "patch_exists": True,
            "patch_successfully_applied": True,
            "resolved": False,
            "infra_failure": False,
            "tests_status": {
                "FAIL_TO_PASS": {"success": [A], "failure": []},
                "PASS_TO_PASS": {"success": [B], "failure": [C]},
                "FAIL_TO_FAIL": {"success": [], "failure": []},
                "PASS_TO_FAIL": {"success": [], "failure": []},
            },
        }
    }
    nothing = report(row(), None, patch=None, applied=False)["owner__it-1"]
    assert nothing["patch_is_None"] and not nothing["patch_exists"] and "tests_status" not in nothing
