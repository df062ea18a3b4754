"""A submission applied to the pristine repository, in a container that no agent has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunix_core.sandboxes import Sandbox
from tunix_env_swebench.ownership import owned, touched
from tunix_env_swebench.repository import GIT_ENV, ROOT, checked
from tunix_env_swebench.rows import Row

PATCH = "/tmp/submission.diff"
APPLY_S = 120.0
WAYS = (
    ("git", "apply", "--verbose", PATCH),
    ("git", "apply", "--verbose", "--3way", PATCH),
    ("git", "apply", "--verbose", "--reject", PATCH),
    ("patch", "--batch", "--forward", "--fuzz=5", "-p1", "-i", PATCH),
)
CLEAN = "git reset --quiet --hard && git clean --quiet -fd"
# The whole work tree as git sees it, ignored files included; the repository's own index is left alone.
TREE = "set -e; export GIT_INDEX_FILE=/tmp/tunix-index; git add --all --force . >/dev/null 2>&1; git write-tree"
RESTORE = "git --literal-pathspecs restore --worktree --source={tree} --pathspec-from-file=- --pathspec-file-nul"
REMOVE = "xargs -0 -r rm -rf --"
RESOLVE = "xargs -0 -r realpath -mz --"
_LINK = "120000"


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between two trees: its new mode, and A(dded), D(eleted), M(odified) or T(ype)."""

    path: str
    mode: str
    status: str


class Unusable(Exception):
    """Why a submission scores 0 without a test being run. Says one word and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def apply(sandbox: Sandbox, row: Row, patch: str) -> None:
    """Leaves the repository with what the submission changes, less what belongs to the tests.

    Raises:
        Unusable: it can't be applied, leaves the repository, or changes nothing that counts.
        SandboxError: a step of ours failed.
    """
    _check_paths(patch)
    await sandbox.write(PATCH, patch.encode(errors="surrogateescape"))
    before = await _tree(sandbox)
    await _apply_somehow(sandbox)
    changes = await _changes(sandbox, before)
    tests = set(owned(row, (change.path for change in changes)))
    await _undo(sandbox, before, [change for change in changes if change.path in tests])
    kept = [change for change in changes if change.path not in tests]
    if not kept:
        raise Unusable(
            "only_tests", f"it changes nothing but what belongs to the tests: {', '.join(sorted(tests)[:5])}"
        )
    await _check_links(sandbox, [change.path for change in kept if change.mode == _LINK])


def _check_paths(patch: str) -> None:
    for path in touched(patch):
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or ".git" in (part.lower() for part in parts):
            raise Unusable("unappliable", f"it names {path!r}, which is not a file of the repository")


async def _apply_somehow(sandbox: Sandbox) -> None:
    said = ""
    for way in WAYS:
        result = await sandbox.exec(way, timeout_s=APPLY_S, user="root", cwd=ROOT, env=GIT_ENV)
        if result.ok:
            return
        said = said or (result.stderr or result.stdout).decode(errors="replace").strip()
        await checked(sandbox, CLEAN, "the work tree could not be cleaned", timeout_s=APPLY_S, user="root")
    raise Unusable("unappliable", f"it can't be applied: {said[-300:]}")


async def _tree(sandbox: Sandbox) -> str:
    made = await checked(sandbox, TREE, "the work tree could not be read", timeout_s=APPLY_S, user="root")
    return made.decode().strip()


async def _changes(sandbox: Sandbox, before: str) -> list[Change]:
    listing = f"after=$({TREE}) && git diff-tree -r -z --raw --no-renames {before} $after"
    raw = await checked(sandbox, listing, "the changes could not be listed", timeout_s=APPLY_S, user="root")
    return read_changes(raw.decode(errors="surrogateescape"))


def read_changes(raw: str) -> list[Change]:
    """The changes in what `git diff-tree --raw -z` prints: ":100644 100644 OLD NEW M", and the path."""
    fields = raw.split("\0")[:-1]
    return [
        Change(path, mode=about.split()[1], status=about.split()[4][0])
        for about, path in zip(fields[::2], fields[1::2], strict=True)
    ]


async def _undo(sandbox: Sandbox, before: str, changes: Sequence[Change]) -> None:
    new = [change.path for change in changes if change.status == "A"]
    old = [change.path for change in changes if change.status != "A"]
    for script, paths in ((REMOVE, new), (RESTORE.format(tree=before), old)):
        if paths:
            await _of_paths(sandbox, script, paths)


async def _check_links(sandbox: Sandbox, links: Sequence[str]) -> None:
    targets = (await _of_paths(sandbox, RESOLVE, links)).decode(errors="replace").split("\0") if links else []
    for link, target in zip(links, targets, strict=False):
        if target != ROOT and not target.startswith(f"{ROOT}/"):
            raise Unusable("link", f"its link {link!r} leads out of the repository, to {target!r}")


async def _of_paths(sandbox: Sandbox, script: str, paths: Sequence[str]) -> bytes:
    given = "".join(f"{path}\0" for path in paths).encode(errors="surrogateescape")
    failure = "the files of the tests could not be restored"
    return await checked(sandbox, script, failure, timeout_s=APPLY_S, user="root", stdin=given)
