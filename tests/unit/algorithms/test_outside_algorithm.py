"""The algorithm of the page, as a stranger's installed package: found by its id, lawful, and configured like ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs/algorithms.md"
USE = """
import sys
from tunix_core.config import load_config
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.run.build import algorithms
from test_acme_algorithms import test_ranks

test_ranks()
suites = '[[suite]]\\nenv = "acme/none"\\n[trainer]\\nalgorithm = "acme/ranks"\\noptions = '
made = algorithms(load_config(None, text=suites + '{ cap = 3, kl_weight = 0.1 }'), Hub.load())["acme/none"]
print(made.id, made.needs_reference, made.advantages(__import__("numpy").array([0.0, 2.0, 1.0])).round(3).tolist())
try:
    algorithms(load_config(None, text=suites + '{ cup = 3 }'), Hub.load())
except UsageError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, and what an installer leaves beside them."""
    site = tmp_path_factory.mktemp("site")
    for text in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        named = re.match(r"# (\w+\.py)\n", text)
        assert named
        (site / named[1]).write_text(text)
    info = site / "acme_algorithms-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-algorithms\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[tunix]\nacme = acme_algorithms\n")
    return site


def python(site: Path, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TUNIX_")} | {"PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, cwd=site)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_short_and_uses_only_the_public_face(site: Path) -> None:
    code = (site / "acme_algorithms.py").read_text()
    assert len(code.splitlines()) < 40
    assert set(re.findall(r"tunix_core[\w.]*", code)) == {"tunix_core", "tunix_core.algorithms"}


def test_it_is_listed_as_a_package_is(site: Path) -> None:
    shown = json.loads(python(site, "-m", "tunix_core.cli", "hub", "show", "acme/ranks", "--json"))
    assert (shown["package"], shown["version"]) == ("acme-algorithms", "0.1.0")
    assert shown["options"]["cap"] == {"default": 2.0, "help": "the largest ratio"}


def test_it_keeps_the_laws_and_takes_the_options_of_every_policy_gradient(site: Path) -> None:
    made, refused = python(site, "-c", USE).splitlines()
    assert made == "acme/ranks True [-0.667, 0.667, 0.0]"
    assert "acme/ranks takes no option 'cup'" in refused
