from __future__ import annotations

import pytest
from rows_for_tests import SCRIPT, TEST_PATCH, row
from tunix_env_swebench.rows import END, START
from tunix_env_swebench.running import Run, arrange, distrust

NAME = "abc123"
OURS = f"tests/test_{NAME}.py::test_{NAME}"
OTHER = "tests/test_it.py::test_a"


def with_tests(*lines: str) -> str:
    return "\n".join(["cd /testbed", f": '{START}'", *lines, f": '{END}'", "git checkout abc"])


def test_the_script_ends_with_the_tests_and_their_exit_code() -> None:
    script = arrange(row(), NAME)
    lines = script.text.splitlines()
    assert lines[-3:] == [f"echo '{script.mark}'", f"pytest -rA tests/test_it.py tests/test_{NAME}.py", "exit $?"]
    assert lines[: len(TEST_PATCH.splitlines())] == SCRIPT.splitlines()[: len(TEST_PATCH.splitlines())]
    assert NAME in script.mark and START not in script.text and "git checkout abc" not in script.text


def test_one_more_test_that_must_fail_is_written_before_the_tests() -> None:
    lines = arrange(row(), NAME).text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("printf"))
    assert f"def test_{NAME}():" in "\n".join(lines[at : at + 2]) and f"/testbed/tests/test_{NAME}.py" in "\n".join(
        lines
    )
    assert "echo" not in "\n".join(lines[:at])


@pytest.mark.parametrize(
    "lines",
    [
        ("./tests/runtests.py --verbosity 2 it",),
        ("pytest -rA",),  # named no file
        ("pytest -rA tests/test_it.py | tee log",),
        ("pytest -rA tests/test_it.py", "cat results.xml"),  # its exit code is another command's
    ],
)
def test_other_runners_are_left_as_they_are(lines: tuple[str, ...]) -> None:
    script = arrange(row(eval_script=with_tests(*lines)), NAME)
    assert not script.must_fail and script.text.endswith("\n".join([*lines, "exit $?", ""]))


@pytest.mark.parametrize(
    ("statuses", "exit_code", "doubt"),
    [
        ({OTHER: "PASSED", OURS: "FAILED"}, 1, None),
        ({OTHER: "FAILED", OURS: "FAILED"}, 1, None),
        ({OTHER: "PASSED", OURS: "PASSED"}, 0, "a test that must fail passed"),
        ({OTHER: "PASSED", OURS: "SKIPPED"}, 1, "a test that must fail passed"),
        ({OTHER: "PASSED"}, 0, "not in the log"),
        ({}, 2, "not in the log"),
        ({OTHER: "PASSED", OURS: "FAILED"}, 0, "ended with 0"),
        ({OTHER: "PASSED", OURS: "FAILED"}, 137, "ended with 137"),
    ],
)
def test_when_a_run_of_pytest_is_believed(statuses: dict[str, str], exit_code: int, doubt: str | None) -> None:
    said = distrust(row(), arrange(row(), NAME), Run("log", exit_code), statuses)
    assert said is None if doubt is None else said is not None and doubt in said


@pytest.mark.parametrize(
    ("statuses", "exit_code", "believed"),
    [
        ({OTHER: "PASSED"}, 0, True),
        ({OTHER: "FAILED"}, 1, True),
        ({OTHER: "PASSED"}, 1, False),  # the log claims more than the command does
        ({}, 1, True),  # nothing is claimed: every test failed
    ],
)
def test_when_another_runner_is_believed(statuses: dict[str, str], exit_code: int, believed: bool) -> None:
    other = row(eval_script=with_tests("./runtests.py"))
    assert (distrust(other, arrange(other, NAME), Run("log", exit_code), statuses) is None) is believed


@pytest.mark.parametrize(
    ("log", "statuses", "exit_code", "believed"),
    [
        ("Executed 12 of 12", {}, 0, True),
        ("Executed 0 of 0", {}, 0, False),
        ("", {}, 0, False),  # silence is no proof
        ("  31 passing (2s)\n", {}, 0, True),
        ("0 passing\n", {}, 0, False),
        ("31 passing", {}, 1, False),
        ("31 passing", {OTHER: "FAILED"}, 1, True),
        ("30 specs, 0 failures", {}, 0, True),
    ],
)
def test_where_only_failures_are_logged_silence_must_come_from_tests_that_ran(
    log: str, statuses: dict[str, str], exit_code: int, believed: bool
) -> None:
    other = row(eval_script=with_tests("npm test"), eval_type="fail_only")
    assert (distrust(other, arrange(other, NAME), Run(log, exit_code), statuses) is None) is believed
