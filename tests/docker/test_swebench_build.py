"""Images built from a repository of one's own, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import ImageNotFound
from tunix_env_swebench import building
from tunix_env_swebench.rows import Row

from tunix_core.cli import main

pytestmark = pytest.mark.docker
IMAGE = "tunix/swebench.test-build:1"
TESTS = (
    "diff --git a/tests/test_it.py b/tests/test_it.py\nnew file mode 100644\n--- /dev/null\n+++ b/tests/test_it.py\n"
)
ROW: dict[str, Any] = {
    "instance_id": "me__it-1",
    "repo": "me/it",
    "base_commit": "HEAD~1",
    "problem_statement": "It does not work.",
    "patch": "diff --git a/it.py b/it.py\n--- a/it.py\n+++ b/it.py\n@@ -1 +1 @@\n-works = False\n+works = True\n",
    "test_patch": f"{TESTS}@@ -0,0 +1,5 @@\n+import it\n+\n+\n+def test_it():\n+    assert it.works\n",
    "FAIL_TO_PASS": ["tests/test_it.py::test_it"],
    "PASS_TO_PASS": [],
    "image": IMAGE,
    "log_parser": "tunix/pytest",
    "source": {"git": "origin", "requires": ["pytest>=6"], "setup": ["echo built > built.txt"]},
}
ROW["eval_script"] = (
    f"cd /testbed\ngit apply - <<'EOF'\n{ROW['test_patch']}EOF\n: '>>>>> Start Test Output'\n"
    "python3 -m pytest -rA -p no:cacheprovider tests/test_it.py\n: '>>>>> End Test Output'\n"
)


@pytest.fixture
def client() -> Iterator[Any]:
    found = docker.from_env(timeout=600)
    yield found
    with suppress(ImageNotFound):
        found.images.remove(IMAGE, force=True)
    found.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a repository, whose newest commit is the fix, and a file of rows."""
    origin = tmp_path / "origin"
    script = (
        "git init -q origin && cd origin && git config user.name x && git config user.email x && "
        "echo 'works = False' > it.py && git add . && git commit -qm first && "
        "echo 'works = True' > it.py && git commit -qam 'the fix'"
    )
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True)
    assert origin.is_dir()
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW))
    return tmp_path


def tunix(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def options(folder: Path) -> tuple[str, ...]:
    return "-o", f"source={json.dumps(str(folder / 'rows.jsonl'))}", "-o", "eval_share=1", "-o", "memory_mb=512"


def inside(client: Any, *command: str) -> str:
    return client.containers.run(IMAGE, list(command), remove=True, network_mode="none", network_disabled=True).decode()


def test_a_row_of_ones_own_is_built_and_can_be_solved(
    folder: Path, client: Any, base_image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = str(folder / "rows.jsonl")
    assert tunix("swebench", "build", rows, "--base", base_image) == 0
    log = inside(client, "git", "-C", "/testbed", "log", "--all", "--format=%s")
    assert log.splitlines() == ["The repository as it is"]  # the fix is in no history
    assert inside(client, "cat", "/testbed/it.py", "/testbed/built.txt") == "works = False\nbuilt\n"
    assert tunix("check", "swebench/rows", "--gold", *options(folder)) == 0, capsys.readouterr().out
    assert tunix("swebench", "build", rows, "--base", base_image) == 0
    assert f"me__it-1: {IMAGE} is there" in capsys.readouterr().out


def test_the_official_parser_grades_it(
    folder: Path, client: Any, base_image: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "harness"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), "swebench==5.0.2")
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"swebench 5.0.2 can't be had from PyPI: {done.stderr[-200:]}")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    (folder / "rows.jsonl").write_text(json.dumps({**ROW, "log_parser": "parse_log_pytest"}))
    assert tunix("swebench", "build", str(folder / "rows.jsonl"), "--base", base_image) == 0
    assert tunix("check", "swebench/rows", "--gold", *options(folder)) == 0


def test_a_build_has_no_network_and_leaves_no_container(client: Any, folder: Path, base_image: str) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    source = {**ROW["source"], "setup": [f'python3 -c "{code}"']}
    row = Row.model_validate({**ROW, "source": source})
    with pytest.raises(building.BuildError, match="Network is unreachable"):
        building.build(client, row, base_image, folder)
    with pytest.raises(building.BuildError, match="there is no image 'tunix/none:1'"):
        building.build(client, row, "tunix/none:1", folder)
    assert not client.containers.list(all=True, filters={"label": building.LABEL})
