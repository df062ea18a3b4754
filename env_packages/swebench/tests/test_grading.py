from __future__ import annotations

import asyncio
from typing import Any

import pytest
from repository_fake import CHANGED, Repository
from rows_for_tests import GOLD, row
from tunix_env_swebench.grading import Verdict, grade
from tunix_env_swebench.patching import WAYS, read_changes

from tunix_core.rewards import GraderError
from tunix_core.sandboxes import SandboxError, SandboxLimits
from tunix_core.testing.fake_sandboxes import FakeSandboxes

PASSED = "MARK\nPASSED tests/test_it.py::test_a\nPASSED tests/test_it.py::test_b\nPASSED tests/test_it.py::test_c\n"
MUST_FAIL = "FAILED tests/test_NAME.py::test_NAME - must\n"


def graded(repository: Repository, patch: str | None = GOLD, **changes: Any) -> Verdict:
    sandboxes = repository.sandboxes()
    verdict = asyncio.run(grade_in(sandboxes, patch, repository.name, **changes))
    assert all(sandbox.closed for sandbox in sandboxes.opened)
    return verdict


async def grade_in(sandboxes: FakeSandboxes, patch: str | None, name: str, **changes: Any) -> Verdict:
    limits = SandboxLimits()
    return await grade(sandboxes, row(**changes), patch, limits=limits, timeout_s=60, draw=lambda: name)


def test_a_patch_that_passes_is_resolved() -> None:
    repository = Repository()
    verdict = graded(repository)
    assert verdict.resolved and verdict.share == 1 and not verdict.reason
    assert verdict.report["owner__it-1"]["resolved"] and verdict.report["owner__it-1"]["patch_successfully_applied"]
    assert repository.done == ["tree", "git apply --verbose", "changes", "tests"]


@pytest.mark.parametrize("patch", [None, "", " \n"])
def test_an_empty_patch_scores_nothing_and_opens_nothing(patch: str | None) -> None:
    sandboxes = Repository().sandboxes()
    verdict = asyncio.run(grade_in(sandboxes, patch, "x"))
    assert (verdict.resolved, verdict.share, verdict.reason) == (False, 0, "empty_patch") and not sandboxes.opened
    assert not verdict.report["owner__it-1"]["patch_successfully_applied"]


@pytest.mark.parametrize("works", range(len(WAYS)))
def test_each_way_to_apply_is_tried_on_a_clean_tree(works: int) -> None:
    repository = Repository(works=works)
    assert graded(repository).resolved
    tried = [step for step in repository.done if step.startswith(("git", "patch", "clean"))]
    expected = [step for way in WAYS[: works + 1] for step in (" ".join(way[:3]), "clean")][:-1]
    assert tried == expected


def test_a_patch_that_applies_in_no_way_scores_nothing() -> None:
    repository = Repository(works=len(WAYS))
    verdict = graded(repository)
    assert (verdict.share, verdict.reason) == (0, "unappliable") and "patch failed" in verdict.message
    assert "tests" not in repository.done and repository.done[-1] == "clean"


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "../up.py", "a/../../up.py", "sub/.GIT/config", "/etc/x"])
def test_a_patch_that_names_what_is_no_file_of_the_repository_is_not_applied(path: str) -> None:
    repository = Repository()
    assert graded(repository, GOLD.replace("it.py", path)).reason == "unappliable"
    assert not repository.done


def test_what_belongs_to_the_tests_is_restored() -> None:
    changes = f"{CHANGED}:000000 100644 0 1 A\0conftest.py\0:100644 100644 1 2 M\0tests/test_it.py\0"
    repository = Repository(changes=changes)
    assert graded(repository).resolved
    assert repository.given["remove"] == b"conftest.py\0" and repository.given["restore"] == b"tests/test_it.py\0"
    assert repository.done[-3:] == ["remove", "restore", "tests"]


def test_a_patch_of_nothing_but_tests_scores_nothing() -> None:
    verdict = graded(Repository(changes=":100644 100644 1 2 M\0tests/test_it.py\0"))
    assert (verdict.share, verdict.reason) == (0, "only_tests")


@pytest.mark.parametrize(
    ("target", "fine"), [("/testbed/it.py", True), ("/testbed", True), ("/etc/passwd", False), ("/testbeds", False)]
)
def test_a_link_stays_in_the_repository(target: str, fine: bool) -> None:
    changes = f"{CHANGED}:000000 120000 0 1 A\0link\0"
    verdict = graded(Repository(changes=changes, links=f"{target}\0".encode()))
    assert verdict.resolved is fine and verdict.reason == ("" if fine else "link")


@pytest.mark.parametrize(
    ("log", "exit_code", "reason"),
    [
        (
            PASSED.replace("PASSED tests/test_it.py::test_a", "FAILED tests/test_it.py::test_a") + MUST_FAIL,
            1,
            "tests_failed",
        ),
        (PASSED + MUST_FAIL + "FAILED tests/test_it.py::test_a\n", 1, "tests_failed"),
        ("MARK\nFAILED tests/test_it.py::test_a\n" + MUST_FAIL + PASSED.replace("MARK\n", ""), 1, "tests_failed"),
        (PASSED, 0, "log_not_believed"),
        (PASSED + MUST_FAIL, 0, "log_not_believed"),
        (PASSED + MUST_FAIL.replace("FAILED", "PASSED"), 0, "log_not_believed"),
        ("MARK\n", 2, "log_not_believed"),
        (PASSED.replace("MARK\n", ""), 0, "tests_not_reached"),
        (PASSED + MUST_FAIL, None, "tests_timeout"),
    ],
)
def test_a_run_that_does_not_show_every_test_passing_scores_nothing(
    log: str, exit_code: int | None, reason: str
) -> None:
    verdict = graded(Repository(log=log, exit_code=exit_code))
    assert (verdict.resolved, verdict.share, verdict.reason) == (False, 0, reason)
    assert verdict.report["owner__it-1"]["tests_status"]["FAIL_TO_PASS"]["failure"]


def test_output_without_end_scores_nothing() -> None:
    repository = Repository(log=PASSED.replace("MARK\n", "MARK\n" + "x" * (2 << 20)) + MUST_FAIL.replace("FAILED", "P"))
    assert graded(repository).reason == "output_too_long"


def test_binary_output_is_read() -> None:
    repository = Repository(log=PASSED.replace("MARK\n", "MARK\n\x00\ufffd\x1b[31m\n") + MUST_FAIL)
    assert graded(repository).resolved


# ---- what is ours to fail has no verdict -----------------------------------------------------------------
def test_a_container_that_can_not_be_had_is_no_score() -> None:
    with pytest.raises(SandboxError, match="gone"):
        asyncio.run(grade_in(FakeSandboxes(fail=SandboxError("gone")), GOLD, "x"))


@pytest.mark.parametrize("step", ["tree", "changes", "tests"])
def test_a_container_that_is_lost_is_no_score(step: str) -> None:
    repository = Repository()
    sandboxes = repository.sandboxes()

    def lose(sandbox: Any, call: Any) -> Any:
        found = repository.answer(sandbox, call)
        if repository.done[-1] == step:
            raise SandboxError("lost")
        return found

    sandboxes.script = lose
    with pytest.raises(SandboxError, match="lost"):
        asyncio.run(grade_in(sandboxes, GOLD, repository.name))
    assert all(sandbox.closed for sandbox in sandboxes.opened)


def test_a_parser_that_is_lost_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunix_env_swebench.parsing._ASK", ("false",))
    with pytest.raises(GraderError):
        graded(Repository(), log_parser="parse_log_pytest")


def test_changes_are_read_with_any_name() -> None:
    raw = ":100644 120000 1 2 T\0a b\n.py\0:100644 000000 1 0 D\0ü\0"
    found = [(change.path, change.mode, change.status) for change in read_changes(raw)]
    assert found == [("a b\n.py", "120000", "T"), ("ü", "000000", "D")] and not read_changes("")
