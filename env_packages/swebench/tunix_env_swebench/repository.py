"""The repository inside a sandbox: made ready for the agent, and what the agent changed taken from it."""

from __future__ import annotations

from tunix_core.sandboxes import ExecResult, Sandbox, SandboxError

ROOT = "/testbed"
BASE = "/opt/tunix-base.git"  # root's, so that a submission is told from what was there, whatever became of .git
PREPARE_S = 300.0
DIFF_S = 120.0
MAX_CHANGED_BYTES = 32 << 20  # of the changed files; git needs several times as much memory for their diff
TOO_MUCH = 27  # the exit code that says so
# Neither the agent's nor the image's configuration of git has a say in ours.
GIT_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_AUTHOR_NAME": "tunix",
    "GIT_AUTHOR_EMAIL": "tunix@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "tunix",
    "GIT_COMMITTER_EMAIL": "tunix@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "LC_ALL": "C.UTF-8",
}

# Tracked files that .gitignore names stay tracked; every other trace of the history goes.
ONE_COMMIT = """
set -euo pipefail
tracked=$(mktemp)
if [ -e .git ]; then git ls-files -z > "$tracked"; fi
find . -name .git -prune -exec rm -rf {} +
git init --quiet --initial-branch=main
while IFS= read -r -d '' path; do
  if [ -e "$path" ] || [ -L "$path" ]; then printf '%s\\0' "$path"; fi
done < "$tracked" | git --literal-pathspecs add --force --pathspec-from-file=- --pathspec-file-nul
rm -f "$tracked"
git add --all
git commit --quiet --allow-empty --no-verify --message='The repository as it is'
"""

# The index and new objects lie beside the base, so that nothing of the agent's .git is read or trusted.
TAKE_DIFF = f"""
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/objects"
export GIT_DIR={BASE} GIT_WORK_TREE={ROOT} GIT_INDEX_FILE="$work/index"
export GIT_OBJECT_DIRECTORY="$work/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES={BASE}/objects
git read-tree HEAD
git add --all . >&2
total=0
while read -r size; do
  case $size in *[!0-9]*) ;; *) total=$((total + size)) ;; esac
done < <(git diff --cached --raw --no-abbrev --no-renames HEAD | cut -d ' ' -f 4 \\
  | git cat-file --batch-check='%(objectsize)')
[ "$total" -le {MAX_CHANGED_BYTES} ] || exit {TOO_MUCH}
git diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames HEAD
"""


async def prepare(sandbox: Sandbox) -> None:
    """Leaves the repository at one commit, without past or future, and keeps a copy of that commit.

    Raises:
        SandboxError: the image has no repository at /testbed, or no git or bash.
    """
    await checked(sandbox, ONE_COMMIT, "the repository could not be prepared", timeout_s=PREPARE_S)
    keep = f"cp -r {ROOT}/.git {BASE} && chmod -R a+rX,go-w {BASE}"
    await checked(sandbox, keep, "the repository's state could not be kept", timeout_s=PREPARE_S, user="root")


async def take_diff(sandbox: Sandbox) -> ExecResult:
    """What was changed since `prepare`, as a diff on standard output. Not `ok` when the agent left its
    repository in a state that git can't read; `truncated` when the diff is longer than the sandbox keeps; exit
    code `TOO_MUCH` when the changed files are too large to make one."""
    return await sandbox.exec(["bash", "-c", TAKE_DIFF], timeout_s=DIFF_S, cwd="/", env=GIT_ENV)


async def checked(
    sandbox: Sandbox,
    script: str,
    failure: str,
    *,
    timeout_s: float,
    user: str | None = None,
    stdin: bytes | None = None,
) -> bytes:
    """What a script of ours prints. Raises SandboxError where it fails, since that is no doing of the agent's."""
    result = await sandbox.exec(
        ["bash", "-c", script], timeout_s=timeout_s, user=user, cwd=ROOT, env=GIT_ENV, stdin=stdin
    )
    if result.ok:
        return result.stdout
    said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
    how = "ran out of time" if result.timed_out else f"exit code {result.exit_code}"
    raise SandboxError(f"{failure} ({how}): {said[-1] if said else 'it said nothing'}")
