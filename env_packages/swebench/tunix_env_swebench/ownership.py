"""Which files belong to the tests, and not to a solution: what a submission does to them is undone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from tunix_env_swebench.rows import Row

# The words by which the published sets tell a test patch from a solution.
_TEST_WORDS = ("test", "tests", "e2e", "testing")
_TEST_FILE = re.compile(r"(test_.*|.*_test|.*\.test|.*\.spec)\.\w+")
# What a test runner or the interpreter reads before the first test.
_RUNNER_FILES = {
    "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "noxfile.py",
    "sitecustomize.py", "usercustomize.py", "pytest.py", "unittest.py", "runtests.py",
    "package.json", "jest.config.js", "jest.config.ts", "vitest.config.ts", "karma.conf.js", ".mocharc.json",
    "phpunit.xml", "phpunit.xml.dist", "Rakefile", ".rspec", "build.gradle", "pom.xml", "Cargo.toml", "Makefile",
}  # fmt: skip
# At the root these would be imported in place of the real ones.
_ROOT_FOLDERS = ("_pytest", "pytest", "unittest")
# Plugins and paths announce themselves in these, files or folders.
_ANNOUNCING = (".pth", ".egg-info", ".dist-info", ".egg-link")
_HEADER = re.compile(r"^(?:---|\+\+\+) [ab]/(.+?)\t?$", re.MULTILINE)
_BOTH = re.compile(r"^diff --git a/(.+) b/(.+)$", re.MULTILINE)


def touched(patch: str) -> set[str]:
    """The paths that a diff names, old and new."""
    return {*_HEADER.findall(patch), *(path for pair in _BOTH.findall(patch) for path in pair)}


def claims_on(path: str) -> Iterator[str]:
    """For whose sake a path belongs to the tests: folders it lies in, or the path itself."""
    parts = PurePosixPath(path).parts
    for depth, part in enumerate(parts, 1):
        announces = PurePosixPath(part).suffix in _ANNOUNCING
        if part.lower() in _TEST_WORDS or announces or (depth == 1 and part in _ROOT_FOLDERS):
            yield "/".join(parts[:depth])
    if parts[-1] in _RUNNER_FILES or _TEST_FILE.fullmatch(parts[-1]):
        yield path


def owned(row: Row, paths: Iterable[str]) -> list[str]:
    """Those of `paths` that belong to the tests of a row.

    What its reference solution changes does not, nor a folder such as `django/test` in which it changes something.
    """
    solution, tests = touched(row.patch), touched(row.test_patch)

    def is_owned(path: str) -> bool:
        held = (c for c in claims_on(path) if not any(changed.startswith(f"{c}/") for changed in solution))
        return path in tests or (path not in solution and any(held))

    return [path for path in paths if is_owned(path)]
