"""Where a build takes a repository from, fetched on this machine so that the build itself needs no network.

A row's `source` is one of
    {"git": URL, "commit": …}           cloned
    {"path": FOLDER}                    copied
    {"sdist": "name==1.0", "sha256"}    downloaded with pip and checked
    {"patch": FILE}                     a diff that makes the whole tree
and may have "requires", a list of what to install with pip, and "setup", shell commands run in the repository.
Relative paths are those of the file the row came from.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tunix_env_swebench.rows import Row

FETCH_S = 600.0
KINDS = ("git", "path", "sdist", "patch")


class SourceError(Exception):
    """A source that can't be had: says which row, and what to do."""


def fetch(row: Row, folder: Path, target: Path) -> None:
    """Puts the repository of a row into the new folder `target`, without any history.

    Args:
        folder: what relative paths of the source are relative to.

    Raises:
        SourceError: it can't be had.
    """
    kinds = [kind for kind in KINDS if kind in row.source]
    if len(kinds) != 1:
        raise SourceError(
            f"{row.instance_id}: source must have one of {', '.join(KINDS)}, and has {sorted(row.source)}"
        )
    try:
        _FETCH[kinds[0]](row, folder, target)
    except (subprocess.SubprocessError, OSError, tarfile.TarError) as error:
        raise SourceError(
            f"{row.instance_id}: its source {row.source[kinds[0]]!r} can't be had: {_said(error)}"
        ) from error
    for history in target.rglob(".git"):
        shutil.rmtree(history) if history.is_dir() and not history.is_symlink() else history.unlink()


def fetch_wheels(requires: Sequence[str], python: str, target: Path) -> None:
    """Puts wheels of `requires` and all they need into `target`, for a Python such as "3.11" on Linux.

    Raises:
        SourceError: they can't be had.
    """
    given = ["--only-binary", ":all:", "--python-version", python, "--dest", str(target), *requires]
    try:
        _run(_PIP, *given)
    except (subprocess.SubprocessError, OSError) as error:
        raise SourceError(f"the wheels of {', '.join(requires)} can't be had: {_said(error)}") from error


_PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")


def _clone(row: Row, folder: Path, target: Path) -> None:
    url = str(row.source["git"])
    local = folder / url
    _run(("git", "clone", "--quiet", "--no-checkout", "--", str(local) if local.is_dir() else url, str(target)))
    _run(("git", "-C", str(target), "checkout", "--quiet", "--detach", str(row.source.get("commit", row.base_commit))))


def _copy(row: Row, folder: Path, target: Path) -> None:
    shutil.copytree(folder / str(row.source["path"]), target, symlinks=True, ignore=shutil.ignore_patterns(".git"))


def _download(row: Row, folder: Path, target: Path) -> None:
    target.mkdir()
    asked = target / "requirements.txt"
    digest = f" --hash=sha256:{row.source['sha256']}" if "sha256" in row.source else ""
    asked.write_text(f"{row.source['sdist']}{digest}\n", encoding="utf-8")
    _run(_PIP, "--no-deps", "--no-binary", ":all:", "--dest", str(target), "-r", str(asked))
    asked.unlink()
    (archive,) = target.iterdir()
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    archive.unlink()
    (top,) = target.iterdir()
    unpacked = top.rename(target.with_name(f"{target.name}.unpacked"))
    target.rmdir()
    unpacked.rename(target)


def _make(row: Row, folder: Path, target: Path) -> None:
    _run(("git", "init", "--quiet", str(target)))  # outside of a repository, `git apply` may look at one further up
    _run(("git", "-C", str(target), "apply", str(folder / str(row.source["patch"]))))


_FETCH = {"git": _clone, "path": _copy, "sdist": _download, "patch": _make}


def _run(command: Sequence[str], *more: str) -> None:
    subprocess.run((*command, *more), check=True, capture_output=True, timeout=FETCH_S)


def _said(error: Exception) -> str:
    said = error.stderr.decode(errors="replace").strip() if isinstance(error, subprocess.CalledProcessError) else ""
    return said.splitlines()[-1] if said else str(error)
