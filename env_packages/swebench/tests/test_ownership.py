from __future__ import annotations

import pytest
from rows_for_tests import GOLD, row
from tunix_env_swebench.ownership import claims_on, owned, touched


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_it.py", "tests/__init__.py", "pkg/tests/helpers.py", "Test/data.json", "e2e/a.ts", "testing/x.py",
        "test_it.py", "src/it_test.go", "src/it.spec.ts", "src/it.test.js",
        "conftest.py", "pkg/conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml",
        "sitecustomize.py", "usercustomize.py", "evil.pth", "pytest.py", "_pytest/runner.py", "pytest/__init__.py",
        "tests", "bin/test", "package.json", "pkg/Cargo.toml", "evil.egg-info/entry_points.txt",
        "evil-1.dist-info/entry_points.txt",
    ],
)  # fmt: skip
def test_what_belongs_to_the_tests(path: str) -> None:
    assert list(claims_on(path))


@pytest.mark.parametrize(
    "path", ["it.py", "src/contest.py", "latest/it.py", "docs/testing.md", "protest/a.py", "a.pt", "src/_pytest/a.py"]
)
def test_what_belongs_to_the_solution(path: str) -> None:
    assert not list(claims_on(path))


def test_what_the_reference_solution_changes_may_be_changed() -> None:
    config = GOLD.replace("it.py", "setup.cfg")
    assert owned(row(), ["it.py", "setup.cfg", "conftest.py"]) == ["setup.cfg", "conftest.py"]
    assert owned(row(patch=config), ["it.py", "setup.cfg", "conftest.py"]) == ["conftest.py"]


def test_a_folder_that_the_reference_solution_works_in_may_be_worked_in() -> None:
    paths = ["django/test/client.py", "django/test/new/a.py", "tests/a.py", "django/test/conftest.py"]
    patch = GOLD.replace("it.py", "django/test/runner.py")
    assert owned(row(), paths) == paths
    assert owned(row(patch=patch), paths) == ["tests/a.py", "django/test/conftest.py"]


def test_a_file_of_the_test_patch_is_never_the_solutions() -> None:
    patch = GOLD.replace("it.py", "data.json")
    assert owned(row(patch=patch, test_patch=patch), ["data.json"]) == ["data.json"]


def test_the_paths_of_a_diff() -> None:
    patch = (
        "diff --git a/old.py b/new name.py\nsimilarity index 90%\n--- a/old.py\n+++ b/new name.py\n"
        "diff --git a/gone b/gone\n--- a/gone\n+++ /dev/null\n"
        "diff --git a/bin b/bin\nGIT binary patch\n"
    )
    assert touched(patch) == {"old.py", "new name.py", "gone", "bin"}
