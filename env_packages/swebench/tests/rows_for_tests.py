"""Rows that tests begin with."""

from __future__ import annotations

from typing import Any

from tunix_env_swebench.rows import Row

TEST_PATCH = """diff --git a/tests/test_it.py b/tests/test_it.py
--- a/tests/test_it.py
+++ b/tests/test_it.py
@@ -1 +1,2 @@
 import it
+assert it.works
"""
GOLD = """diff --git a/it.py b/it.py
--- a/it.py
+++ b/it.py
@@ -1 +1 @@
-works = False
+works = True
"""
SCRIPT = f"""#!/bin/bash
set -uxo pipefail
cd /testbed
git apply - <<'EOF'
{TEST_PATCH}EOF
: '>>>>> Start Test Output'
pytest -rA tests/test_it.py
: '>>>>> End Test Output'
git checkout abc tests/test_it.py
"""
OLDER: dict[str, Any] = {
    "instance_id": "owner__it-1",
    "repo": "owner/it",
    "base_commit": "abc",
    "problem_statement": "It does not work.",
    "hints_text": "",
    "created_at": "2024-01-01",
    "patch": GOLD,
    "test_patch": TEST_PATCH,
    "version": "1.0",
    "FAIL_TO_PASS": '["tests/test_it.py::test_a"]',
    "PASS_TO_PASS": '["tests/test_it.py::test_b", "tests/test_it.py::test_c"]',
    "environment_setup_commit": "def",
}
NEWER: dict[str, Any] = {
    **OLDER,
    "FAIL_TO_PASS": ["tests/test_it.py::test_a"],
    "PASS_TO_PASS": ["tests/test_it.py::test_b", "tests/test_it.py::test_c"],
    "image": "swebench/sweb.eval.x86_64.owner_1776_it-1:latest",
    "eval_script": SCRIPT,
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
}
OWN: dict[str, Any] = {**NEWER, "log_parser": "tunix/pytest"}


def row(**changes: Any) -> Row:
    """A row that needs no harness."""
    return Row.model_validate({**OWN, **changes})
