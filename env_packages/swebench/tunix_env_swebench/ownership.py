"""Which files belong to the tests, and not to a solution: what a submission does to them is undone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from tunix_env_swebench.rows import Row

# The words by which the published sets tell a test patch from a solution.
_TEST_WORDS = ("test", "tests", "e2e", "testing")
_TEST_FILE = re.compile(r"(test_.*|.*_test|.*\.test|.*\.spec)\.\w+")
# What a test runner or the interpreter reads before the first test.
_RUNNER_FILES = {
    "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "noxfile.py",
    "sitecustomize.py", "usercustomize.py", "pytest.py", "unittest.py", "runtests.py",
}  # fmt: skip
_RUNNER_FOLDERS = {"_pytest", "pytest", "unittest"}
_RUNNER_SUFFIXES = {
    ".pth",
    ".egg-info",
    ".dist-info",
    ".egg-link",
}  # of a file or a folder: plugins announce themselves there
_HEADER = re.compile(r"^(?:---|\+\+\+) [ab]/(.+?)\t?$", re.MULTILINE)
_BOTH = re.compile(r"^diff --git a/(.+) b/(.+)$", re.MULTILINE)


def touched(patch: str) -> set[str]:
    """The paths that a diff names, old and new."""
    return {*_HEADER.findall(patch), *(path for pair in _BOTH.findall(patch) for path in pair)}


def belongs_to_tests(path: str) -> bool:
    """Whether a path is a test, or decides how tests are run."""
    parts = PurePosixPath(path).parts
    return (
        any(part.lower() in _TEST_WORDS for part in parts[:-1])
        or any(PurePosixPath(part).suffix in _RUNNER_SUFFIXES for part in parts)
        or any(part in _RUNNER_FOLDERS for part in parts[:-1])
        or parts[-1] in _RUNNER_FILES
        or _TEST_FILE.fullmatch(parts[-1]) is not None
    )


def owned(row: Row, paths: Iterable[str]) -> list[str]:
    """Those of `paths` that belong to the tests of a row. What its reference solution changes does not."""
    solution, tests = touched(row.patch), touched(row.test_patch)
    return [path for path in paths if path in tests or (belongs_to_tests(path) and path not in solution)]
