from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from rows_for_tests import row
from tunix_env_swebench.mini import DATA, mini_rows
from tunix_env_swebench.rows import Row, check_rows
from tunix_env_swebench.sources import SourceError, fetch

MINI = {found.instance_id: found for found in check_rows(mini_rows())[0]}


def git(folder: Path, *arguments: str) -> str:
    command = ("git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@localhost", *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository with two commits, and the first one's name."""
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "it.py").write_text("works = False\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    first = git(folder, "rev-parse", "HEAD")
    (folder / "it.py").write_text("works = True\n")
    git(folder, "commit", "--quiet", "-am", "the fix")
    return folder, first


def test_a_repository_is_taken_at_its_commit_and_without_its_history(repository: Any, tmp_path: Path) -> None:
    folder, first = repository
    for url in (str(folder), folder.name, folder.as_uri()):
        target = tmp_path / f"from-{len(url)}"
        fetch(row(source={"git": url, "commit": first}), tmp_path, target)
        assert (target / "it.py").read_text() == "works = False\n" and not (target / ".git").exists()


def test_without_a_commit_the_base_commit_is_taken(repository: Any, tmp_path: Path) -> None:
    folder, first = repository
    fetch(row(source={"git": str(folder)}, base_commit=first), tmp_path, tmp_path / "target")
    assert (tmp_path / "target" / "it.py").read_text() == "works = False\n"


def test_a_folder_is_copied_without_any_history(repository: Any, tmp_path: Path) -> None:
    folder, _ = repository
    inner = folder / "vendored" / ".git"
    inner.mkdir(parents=True)
    (folder / "link").symlink_to("it.py")
    fetch(row(source={"path": "origin"}), tmp_path, tmp_path / "target")
    assert (tmp_path / "target" / "it.py").read_text() == "works = True\n"
    assert (tmp_path / "target" / "link").is_symlink() and not list((tmp_path / "target").rglob(".git"))


@pytest.mark.parametrize("identity", [name for name, found in MINI.items() if "patch" in found.source])
def test_the_repositories_of_this_package_are_made_and_their_patches_fit(identity: str, tmp_path: Path) -> None:
    found: Row = MINI[identity]
    fetch(found, DATA, tmp_path / "target")
    git(tmp_path / "target", "init", "--quiet")
    for patch in (found.patch, found.test_patch):
        (tmp_path / "patch").write_text(patch)
        git(tmp_path / "target", "apply", str(tmp_path / "patch"))
    assert (tmp_path / "target" / "README.md").is_file()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({}, "must have one of git, path, sdist, patch"),
        ({"git": "a", "path": "b"}, "must have one of"),
        ({"path": "gone"}, "can't be had"),
        ({"git": "gone", "commit": "abc"}, "can't be had"),
        ({"patch": "gone.patch"}, "can't be had"),
    ],
)
def test_a_source_that_can_not_be_had_is_told_with_the_row(source: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        fetch(row(source=source), tmp_path, tmp_path / "target")
    assert str(caught.value).startswith("owner__it-1: ")
