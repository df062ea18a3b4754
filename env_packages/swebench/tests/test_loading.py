from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from rows_for_tests import NEWER, OLDER, OWN
from tunix_env_swebench import parsing
from tunix_env_swebench.loading import read_raw
from tunix_env_swebench.tasks import load_rows, make_tasks

ROWS = [{**OWN, "instance_id": f"owner__it-{number}"} for number in range(10)]


def write_jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def write_parquet(path: Path, rows: list[dict]) -> str:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def write_json(path: Path, rows: list[dict]) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


@pytest.mark.parametrize("write", [write_jsonl, write_parquet, write_json])
@pytest.mark.parametrize("row", [OLDER, NEWER])
def test_files_of_every_kind_give_the_same_rows(write, row: dict, tmp_path: Path) -> None:
    suffix = write.__name__.removeprefix("write_")
    assert list(read_raw(write(tmp_path / f"rows.{suffix}", [row]), "test")) == [row]


def test_a_directory_has_files_by_split(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "test-00000-of-00002.jsonl", ROWS[:2])
    write_jsonl(tmp_path / "data" / "test-00001-of-00002.jsonl", ROWS[2:4])
    write_jsonl(tmp_path / "data" / "dev-00000-of-00001.jsonl", ROWS[4:])
    assert list(read_raw(str(tmp_path), "test")) == ROWS[:4]
    with pytest.raises(ValueError, match="no split 'train'"):
        read_raw(str(tmp_path), "train")


def test_a_data_set_is_fetched_by_its_id(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "test.jsonl", ROWS)
    asked: list[tuple[str, str]] = []

    def fetch(name: str, split: str) -> Path:
        asked.append((name, split))
        return tmp_path

    assert list(read_raw("owner/set", "test", fetch)) == ROWS
    assert asked == [("owner/set", "test")]


@pytest.mark.parametrize(
    ("source", "said"),
    [("gone.jsonl", "there is no file"), ("nothing", "neither a file nor"), ("a/b/c", "neither a file nor")],
)
def test_a_source_that_is_not_there_is_told(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_raw(source, "test")


def test_refused_rows_are_named_and_the_rest_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tmp_path / "rows.jsonl"
    write_jsonl(source, [ROWS[0], {**ROWS[1], "patch": ""}, ROWS[2]])
    source.write_text(source.read_text() + "{broken\n")
    with caplog.at_level(logging.WARNING):
        rows = load_rows(str(source))
    assert [row.instance_id for row in rows] == ["owner__it-0", "owner__it-2"]
    assert "owner__it-1: patch: " in caplog.text and "row 4: row: " in caplog.text


def test_without_the_harness_a_row_that_needs_it_is_refused_with_the_pip_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "harness_version", lambda: 0)
    source = write_jsonl(tmp_path / "rows.jsonl", [OLDER, ROWS[2], {**NEWER, "instance_id": "owner__it-9"}])
    assert [row.instance_id for row in load_rows(source)] == ["owner__it-2"]
    assert "pip install --no-deps 'swebench<5' unidiff" in caplog.text
    assert "pip install --no-deps 'swebench>=5'" in caplog.text
    with pytest.raises(ValueError, match=r"none of the 1 rows .* pip install"):
        load_rows(write_jsonl(tmp_path / "older.jsonl", [OLDER]))


# ---- tasks ---------------------------------------------------------------------------------------------
def test_splits_never_overlap_and_order_follows_the_seed(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", ROWS)

    def ids(split, seed):
        tasks = make_tasks(split, seed, source=source, eval_share=0.3)
        return [tasks.get(index).id for index in range(len(tasks))]

    assert len(ids("eval", 0)) == 3 and len(ids("train", 0)) == 7
    assert sorted(ids("eval", 0) + ids("train", 0)) == sorted(row["instance_id"] for row in ROWS)
    assert ids("train", 0) == ids("train", 0) != ids("train", 1)
    assert sorted(ids("train", 0)) == sorted(ids("train", 1))


def test_a_task_shows_the_policy_nothing_of_its_gold(tmp_path: Path) -> None:
    task = make_tasks("eval", 0, source=write_jsonl(tmp_path / "rows.jsonl", [OWN])).get(0)
    assert dict(task.payload) == {"instance_id": "owner__it-1", "repo": "owner/it"}
    assert task.gold["patch"] == OWN["patch"] and task.from_json(task.to_json()) == task


def test_rows_are_chosen_by_id(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    listed = tmp_path / "bad.json"
    listed.write_text(json.dumps(["owner__it-3"]))
    chosen = make_tasks("eval", 0, source=source, only=["owner__it-3", "owner__it-4"], exclude=str(listed))
    assert [chosen.get(index).id for index in range(len(chosen))] == ["owner__it-4"]
    with pytest.raises(ValueError, match="exclude: there is no row 'nope'"):
        make_tasks("eval", 0, source=source, exclude=["nope"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"eval_share": 1.5}, "eval_share=1.5"),
        ({"eval_share": 1.0}, "no rows are left for train"),
        ({"source": ""}, "source is missing"),
    ],
)
def test_options_that_leave_nothing_are_told(options: dict, said: str, tmp_path: Path) -> None:
    given = {"source": write_jsonl(tmp_path / "rows.jsonl", ROWS), **options}
    with pytest.raises(ValueError, match=said):
        make_tasks("train", 0, **given)
