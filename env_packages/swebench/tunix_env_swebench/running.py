"""The hidden tests run: the row's script, arranged so that what it reports can be believed.

A script brings its tests between two markers. Ours has the markers under a name drawn for this run, ends with the
test command's exit code, and, for pytest, has one more test that must fail. A run which passes that test, leaves it
out, or ends as if all had passed does not report what happened.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunix_core.sandboxes import Sandbox
from tunix_env_swebench.ownership import touched
from tunix_env_swebench.repository import ROOT
from tunix_env_swebench.rows import END, START, Row
from tunix_env_swebench.rules import FAILING

FIXED = {
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTEST_ADDOPTS": "",
    "PYTEST_PLUGINS": "",
}
FAILED = 1  # pytest's exit code when all was run and some failed
# How runners that name failures only count what they ran; "0 of 0" is none.
_RAN = re.compile(
    r"\b[1-9]\d* (?:passing|passed|specs?|tests?|success)\b|\b(?:executed|tests:|total:) +[1-9]|': ok$",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script to run.

    Attributes:
        text: bash.
        mark: the line after which the test output begins.
        must_fail: in the id of the test that must fail; "" without one.
    """

    text: str
    mark: str
    must_fail: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """How a script ended.

    Attributes:
        log: the test output, or None when it was not reached.
        exit_code: the test command's; None at a timeout.
        truncated: the output was longer than is kept.
    """

    log: str | None
    exit_code: int | None
    timed_out: bool = False
    truncated: bool = False


def arrange(row: Row, name: str) -> Script:
    """The row's script, for one run.

    Args:
        name: drawn for this run; letters and digits.
    """
    lines = row.eval_script.rstrip("\n").split("\n")
    begin = next(i for i, line in enumerate(lines) if START in line)
    end = next(i for i, line in enumerate(lines) if END in line)
    before, tests = lines[:begin], lines[begin + 1 : end]
    mark = f">>>>> tests {name}"
    guarded = _with_failing_test(row, tests, name)
    must_fail = "" if guarded is None else f"test_{name}"
    text = [
        *before,
        *(guarded[0] if guarded else ()),
        f"echo '{mark}'",
        *(guarded[1] if guarded else tests),
        "exit $?",
        "",
    ]
    return Script("\n".join(text), mark, must_fail)


def _with_failing_test(row: Row, tests: Sequence[str], name: str) -> tuple[list[str], list[str]] | None:
    """What writes the failing test, and the test command with it; None where the last command is no plain
    pytest that is given files."""
    said = [line for line in tests if line.strip()]
    files = sorted(path for path in touched(row.test_patch) if path.endswith(".py"))
    named = [path for path in files if said and path in said[-1].split()]
    if not named or "pytest" not in said[-1] or set("|<>&;") & set(said[-1]):
        return None
    path = posixpath.join(posixpath.dirname(named[0]), f"test_{name}.py")
    content = f"def test_{name}():\n    raise AssertionError\n"
    return [f"printf %s {shlex.quote(content)} > {ROOT}/{path}"], [*said[:-1], f"{said[-1].rstrip()} {path}"]


async def run(sandbox: Sandbox, script: Script, timeout_s: float) -> Run:
    """Runs a script as root in the repository. Raises SandboxError when the sandbox fails."""
    path = "/tmp/tunix-tests.sh"
    await sandbox.write(path, script.text.encode())
    command = ("bash", "-c", f"exec bash {path} 2>&1")
    result = await sandbox.exec(command, timeout_s=timeout_s, user="root", cwd=ROOT, env=FIXED)
    _, found, log = f"\n{result.stdout.decode(errors='replace')}".partition(f"\n{script.mark}\n")
    return Run(log if found else None, result.exit_code, result.timed_out, result.truncated)


def distrust(row: Row, script: Script, run: Run, statuses: Mapping[str, str]) -> str | None:
    """Why a log does not describe what was run, or None."""
    if not script.must_fail:
        return _distrust_by_exit_code(row, run, statuses)
    found = [status for name, status in statuses.items() if script.must_fail in name]
    if not found:
        return "a test that must fail is not in the log"
    if not set(found) <= FAILING:
        return "a test that must fail passed"
    if run.exit_code != FAILED:
        return f"a test failed, and the command ended with {run.exit_code}"
    return None


def _distrust_by_exit_code(row: Row, run: Run, statuses: Mapping[str, str]) -> str | None:
    """For runners of any kind. Where only failures are logged, silence must come from tests that ran."""
    if row.fail_only and not statuses and not _RAN.search(run.log or ""):
        return "nothing in the log says that a test was run"
    if run.exit_code and (statuses or row.fail_only) and not FAILING & set(statuses.values()):
        return f"no test failed in the log, and the command ended with {run.exit_code}"
    return None
