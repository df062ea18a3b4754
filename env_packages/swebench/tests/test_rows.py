from __future__ import annotations

import json
from typing import Any

import pytest
from rows_for_tests import NEWER, OLDER, SCRIPT
from tunix_env_swebench.mini import mini_rows
from tunix_env_swebench.rows import Refused, Row, check_rows, published_image


def only_refusal(values: Any) -> Refused:
    rows, refused = check_rows([values])
    assert not rows and len(refused) == 1, refused
    return refused[0]


def test_both_forms_are_read() -> None:
    rows, refused = check_rows([OLDER, {**NEWER, "instance_id": "owner__it-2"}])
    assert not refused
    older, newer = rows
    assert older.fail_to_pass == ("tests/test_it.py::test_a",) and len(older.pass_to_pass) == 2
    assert not older.eval_script and older.image_name == "swebench/sweb.eval.x86_64.owner_1776_it-1:latest"
    assert newer.eval_script == SCRIPT and newer.image_name == NEWER["image"]


@pytest.mark.parametrize("values", [OLDER, NEWER, *mini_rows()])
def test_a_row_survives_json_under_its_published_names(values: Any) -> None:
    row = Row.model_validate(values)
    there = json.loads(json.dumps(row.to_dict()))
    assert Row.model_validate(there) == row and "FAIL_TO_PASS" in there


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"instance_id": "../up"}, "instance_id", "pattern"),
        ({"repo": "it"}, "repo", "pattern"),
        ({"patch": ""}, "patch", "at least 1"),
        ({"patch": " \n"}, "patch", "blank"),
        ({"problem_statement": None}, "problem_statement", "string"),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS", "at least 1"),
        ({"FAIL_TO_PASS": "['a']"}, "FAIL_TO_PASS", "JSON"),
        ({"FAIL_TO_PASS": None}, "FAIL_TO_PASS", "tuple"),
        ({"PASS_TO_PASS": [1]}, "PASS_TO_PASS", "string"),
        ({"eval_script": "pytest"}, "eval_script", "Start Test Output"),
        ({"eval_script": None}, "eval_script", "log_parser needs it"),
        ({"log_parser": ""}, "log_parser", "eval_script needs it"),
        ({"eval_script": "", "log_parser": "", "version": ""}, "version", "test command"),
        ({"eval_type": "both"}, "eval_type", "fail_only"),
        ({"image_assets": {"test_patch": [{"path": "a.png"}]}}, "image_assets", "not supported"),
        ({"image_assets": '{"test_patch": ["a.png"]}'}, "image_assets", "not supported"),
    ],
)
def test_a_malformed_row_is_refused_by_id_and_field(change: dict[str, Any], field: str, said: str) -> None:
    refusal = only_refusal({**NEWER, **change})
    assert refusal.field == field and said in refusal.problem
    assert str(refusal).startswith(f"{change.get('instance_id', 'owner__it-1')}: {field}: ")


def test_what_is_no_row_is_refused_by_its_place() -> None:
    rows, refused = check_rows(["{not json", NEWER, {"repo": "owner/it"}])
    assert [row.instance_id for row in rows] == ["owner__it-1"]
    assert refused[0].instance_id == "row 1" and {each.instance_id for each in refused[1:]} == {"row 3"}
    assert {"instance_id", "patch", "FAIL_TO_PASS"} <= {each.field for each in refused[1:]}


def test_a_second_row_of_one_id_is_refused_and_the_first_kept() -> None:
    rows, refused = check_rows([NEWER, {**NEWER, "version": "2"}])
    assert [row.version for row in rows] == ["1.0"]
    assert (refused[0].field, refused[0].problem) == ("instance_id", "row 2 has the id of an earlier row")


def test_columns_that_other_rows_fill_may_be_null() -> None:
    rows, refused = check_rows(
        [{**OLDER, "image": None, "eval_script": None, "log_parser": None, "image_assets": None}]
    )
    assert rows and not refused


@pytest.mark.parametrize(
    ("instance_id", "image"),
    [
        ("astropy__astropy-12907", "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest"),
        ("pytest-dev__pytest-7521", "swebench/sweb.eval.x86_64.pytest-dev_1776_pytest-7521:latest"),
        ("chartjs__Chart.js-1", "swebench/sweb.eval.x86_64.chartjs_1776_chart.js-1:latest"),
    ],
)
def test_images_have_their_published_names(instance_id: str, image: str) -> None:
    assert published_image(instance_id) == image


@pytest.mark.parametrize(
    ("change", "fail_only"),
    [
        ({}, False),
        ({"eval_type": "fail_only"}, True),
        ({"eval_type": "", "repo": "markedjs/marked"}, True),
        ({"repo": "markedjs/marked"}, False),  # it says "pass_and_fail" itself
    ],
)
def test_whose_parser_only_sees_failures(change: dict[str, Any], fail_only: bool) -> None:
    assert Row.model_validate({**NEWER, **change}).fail_only is fail_only


def test_the_data_of_this_package_is_well_formed() -> None:
    rows, refused = check_rows(mini_rows())
    assert len(rows) == 5 and not refused
    assert all(row.source["requires"] and row.image_name.startswith("tunix/swebench.") for row in rows)
    assert sum("sdist" in row.source for row in rows) == 2
    assert len({row.image_name for row in rows}) == 5
