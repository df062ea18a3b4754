"""Against the official harness, both of its generations. They come from PyPI, without what they depend on."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rows_for_tests import NEWER, OLDER, row
from tunix_env_swebench.parsing import completed, harness_version, statuses_of
from tunix_env_swebench.rows import Row
from tunix_env_swebench.rules import judge

GENERATIONS = {4: ("swebench==4.1.0", "unidiff==0.7.5"), 5: ("swebench==5.0.2",)}
PYTEST_ROW = {**OLDER, "instance_id": "pytest-dev__pytest-7521", "repo": "pytest-dev/pytest", "version": "6.0"}
LOG = "PASSED a::b\nFAILED a::c - no\nXFAIL a::d\nERROR a::e - no\n"


def installed(generation: int, folder: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    done = subprocess.run((*pip, "--target", str(folder), *GENERATIONS[generation]), capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"{GENERATIONS[generation][0]} can't be had from PyPI: {done.stderr.decode()[-200:]}")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {generation: tmp_path_factory.mktemp(f"harness{generation}") for generation in GENERATIONS}


def use(generation: int, folders: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = folders[generation]
    site = folder if any(folder.iterdir()) else installed(generation, folder)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert harness_version() == generation
    return site


@pytest.mark.parametrize("generation", GENERATIONS)
def test_both_generations_parse_a_log(generation: int, folders, monkeypatch: pytest.MonkeyPatch) -> None:
    use(generation, folders, monkeypatch)
    handlers, level = [*logging.root.handlers], logging.root.level
    found = asyncio.run(statuses_of(row(log_parser="parse_log_pytest"), LOG))
    assert (logging.root.handlers, logging.root.level) == (handlers, level) and "swebench" not in sys.modules
    assert found == {"a::b": "PASSED", "a::c": "FAILED", "a::d": "XFAIL", "a::e": "ERROR"}
    django = "test_a (m.C) ... ok\ntest_b (m.C) ... FAIL\ntest_c (m.C) ... skipped 'no'\n"
    found = asyncio.run(statuses_of(row(log_parser="parse_log_django", repo="django/django"), django))
    assert found == {"test_a (m.C)": "PASSED", "test_b (m.C)": "FAILED", "test_c (m.C)": "SKIPPED"}


def test_a_row_of_the_older_form_gets_its_script_from_the_older_harness(folders, monkeypatch) -> None:
    use(4, folders, monkeypatch)
    found, unknown, newer = completed(
        [
            Row.model_validate(values)
            for values in (PYTEST_ROW, {**PYTEST_ROW, "instance_id": "x-1", "version": "99"}, NEWER)
        ]
    )
    assert isinstance(found, Row) and found.log_parser == "parse_log_pytest"
    assert "pytest -rA tests/test_it.py" in found.eval_script and OLDER["test_patch"] in found.eval_script
    assert Row.model_validate(found.to_dict()) == found
    assert unknown == "version: the harness knows no version '99' of pytest-dev/pytest"
    assert isinstance(newer, Row)


def test_the_newer_harness_refuses_what_it_can_not_run(folders, monkeypatch) -> None:
    use(5, folders, monkeypatch)
    newer, older, strange = completed(
        [Row.model_validate(values) for values in (NEWER, PYTEST_ROW, {**NEWER, "log_parser": "parse_log_nothing"})]
    )
    assert isinstance(newer, Row)
    assert (
        isinstance(older, str) and older.startswith("eval_script: ") and "pip install --no-deps 'swebench<5'" in older
    )
    assert strange == "log_parser: swebench 5 has no parser 'parse_log_nothing'"


OFFICIAL = """
import json, sys
from types import SimpleNamespace
from tunix_env_swebench import harness
harness._prepare("parse")
from swebench.harness import grading
from swebench.harness.constants import EvalType
answers = []
for case in json.load(sys.stdin):
    report = grading.get_eval_tests_report(case["statuses"], case["asked"], eval_type=EvalType(case["type"]))
    lists = [report[name][part] for name in ("FAIL_TO_PASS", "PASS_TO_PASS") for part in ("success", "failure")]
    answers.append([grading.get_resolution_status(report) == "RESOLVED_FULL", lists])
print(json.dumps(answers))
"""


def drawn_cases(count: int) -> list[dict[str, Any]]:
    """Statuses of tests whose ids are whole, cut off, or absent."""
    rng = random.Random(0)
    names = ["t::a", "t::b[x y]", "t::b[x z]", "t::c[1]", "t::d", "t::e[k"]
    asked = [*names, "t::b[x", "t::c[", "t::gone", "t::gone[q"]
    statuses = ["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"]
    return [
        {
            "statuses": {name: rng.choice(statuses) for name in names if rng.random() < 0.8},
            "asked": {"FAIL_TO_PASS": rng.sample(asked, 2), "PASS_TO_PASS": rng.sample(asked, 3)},
            "type": rng.choice(["pass_and_fail", "pass_and_fail", "fail_only"]),
        }
        for _ in range(count)
    ]


def test_our_rules_are_the_official_ones(folders, monkeypatch) -> None:
    use(5, folders, monkeypatch)
    cases = drawn_cases(2000)
    done = subprocess.run(
        (sys.executable, "-c", OFFICIAL), input=json.dumps(cases).encode(), capture_output=True, check=True
    )
    for case, (resolved, lists) in zip(cases, json.loads(done.stdout), strict=True):
        outcome = judge(row(**case["asked"], eval_type=case["type"]), case["statuses"])
        ours = [*outcome.fail_to_pass.to_dict().values(), *outcome.pass_to_pass.to_dict().values()]
        assert (outcome.resolved, ours) == (resolved, lists), case
    assert 50 < sum(resolved for resolved, _ in json.loads(done.stdout)) < 1950
