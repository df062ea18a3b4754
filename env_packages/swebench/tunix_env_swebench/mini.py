"""The rows of `swebench/mini`, from the data of this package: three repositories written for it, and two
released packages at a version with a known bug."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunix_env_swebench.parsing import OWN
from tunix_env_swebench.repository import ROOT
from tunix_env_swebench.rows import END, START

DATA = Path(__file__).parent / "data" / "mini"


def mini_rows() -> list[Mapping[str, Any]]:
    """The rows under their published names. An image's tag is a digest of what it is built from."""
    return [_row(each) for each in json.loads((DATA / "rows.json").read_text(encoding="utf-8"))]


def _row(each: Mapping[str, Any]) -> Mapping[str, Any]:
    folder = DATA / each["name"]
    tests = (folder / "tests.patch").read_text(encoding="utf-8")
    return {
        **each,
        "base_commit": "HEAD",
        "problem_statement": (folder / "issue.txt").read_text(encoding="utf-8").strip(),
        "patch": (folder / "gold.patch").read_text(encoding="utf-8"),
        "test_patch": tests,
        "image": f"tunix/swebench.{each['name']}:{_digest(each['source'])}",
        "eval_script": _script(tests, each["tests"]),
        "log_parser": OWN,
        "eval_type": "pass_and_fail",
    }


def _digest(source: Mapping[str, Any]) -> str:
    content = json.dumps(source, sort_keys=True).encode()
    if "patch" in source:
        content += (DATA / source["patch"]).read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]


def _script(tests: str, files: list[str]) -> str:
    return f"""#!/bin/bash
set -uxo pipefail
cd {ROOT}
git apply --verbose - <<'END_OF_TEST_PATCH'
{tests}END_OF_TEST_PATCH
: '{START}'
python3 -m pytest -rA -p no:cacheprovider {" ".join(files)}
: '{END}'
"""
