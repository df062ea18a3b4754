"""The tasks of the suites: the rows of a source that can be graded here, in an order that the seed decides."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from tunix_core import Message, Task, ToolCall
from tunix_env_swebench.loading import read_raw
from tunix_env_swebench.mini import mini_rows
from tunix_env_swebench.parsing import completed
from tunix_env_swebench.rows import Refused, Row, check_rows

log = logging.getLogger(__name__)
Split = Literal["train", "eval"]
MINI = "mini"


class RowTasks:
    """One task per row. `get(i)` is a pure function of (rows, split, seed, i)."""

    def __init__(self, rows: Sequence[Row], split: Split, seed: int) -> None:
        order = np.random.default_rng([seed]).permutation(len(rows))
        self._rows = [rows[index] for index in order]
        self._split: Split = split

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, index: int) -> Task:
        if not 0 <= index < len(self._rows):
            raise IndexError(f"task {index}, of {len(self._rows)} for {self._split}, from 0")
        row = self._rows[index]
        shown = {"instance_id": row.instance_id, "repo": row.repo}
        return Task(id=row.instance_id, payload=shown, split=self._split, gold=row.to_dict())


def make_tasks(
    split: Split,
    seed: int,
    *,
    source: str = "",
    source_split: str = "test",
    eval_share: float = 1.0,
    only: Sequence[str] | str = (),
    exclude: Sequence[str] | str = (),
) -> RowTasks:
    """The tasks of one split.

    Args:
        source: a .jsonl, .json or .parquet file, a directory, a data set's id, or "mini".
        source_split: which split of a directory or data set.
        eval_share: the share of the rows kept for eval, decided by their ids.
        only: ids to take; default: all.
        exclude: ids to leave out. Each of these may be the path of a file with a JSON list, or one id a line.

    Raises:
        ValueError: an option can't be used, or no row is left.
    """
    if not 0 <= eval_share <= 1:
        raise ValueError(f"eval_share={eval_share!r}: expected a share between 0 and 1")
    rows = load_rows(source, source_split)
    held_out = _held_out(rows, eval_share)
    chosen = _chosen(rows, ids_of(only), ids_of(exclude))
    chosen = [row for row in chosen if (row.instance_id in held_out) == (split == "eval")]
    if not chosen:
        raise ValueError(f"no rows are left for {split}: eval_share={eval_share:g} of {len(rows)} rows go to eval")
    return RowTasks(chosen, split, seed)


def load_rows(source: str, source_split: str = "test") -> list[Row]:
    """The rows of a source that can be graded; each of the others is named in a warning, with its field.

    Raises:
        ValueError: there is no source, or none of its rows can be graded.
    """
    if not source:
        raise ValueError(
            "source is missing: give a file of rows, or a data set's id such as 'SWE-bench/SWE-bench_Lite'"
        )
    rows, refused = check_rows(mini_rows() if source == MINI else read_raw(source, source_split))
    found = completed(rows)
    refused += [_refusal(row, why) for row, why in zip(rows, found, strict=True) if isinstance(why, str)]
    for each in refused:
        log.warning("%s: row refused: %s", source, each)
    usable = [row for row in found if isinstance(row, Row)]
    if not usable:
        first = f"; the first: {refused[0]}" if refused else ""
        raise ValueError(f"none of the {len(refused)} rows of {source!r} can be used{first}")
    return usable


def _refusal(row: Row, why: str) -> Refused:
    field, _, problem = why.partition(": ")
    return Refused(row.instance_id, field, problem)


def ids_of(given: Sequence[str] | str) -> list[str]:
    """Ids from a list, one id, or a file of them."""
    if not isinstance(given, str):
        return list(given)
    path = Path(given)
    if not given or not path.is_file():
        return [given] if given else []
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if text.lstrip().startswith("[") else text.split()


def _chosen(rows: Sequence[Row], only: Sequence[str], exclude: Sequence[str]) -> list[Row]:
    known = {row.instance_id for row in rows}
    for name, ids in (("only", only), ("exclude", exclude)):
        if missing := sorted({*ids} - known):
            raise ValueError(f"{name}: there is no row {missing[0]!r} ({len(missing)} such ids)")
    return [row for row in rows if (not only or row.instance_id in only) and row.instance_id not in exclude]


def _held_out(rows: Sequence[Row], eval_share: float) -> set[str]:
    """Whose tasks are for eval: the first in an order that no seed changes, so that the splits never overlap."""
    ranked = sorted((row.instance_id for row in rows), key=lambda name: hashlib.blake2b(name.encode()).digest())
    return set(ranked[: round(eval_share * len(rows))])


def solutions(task: Task) -> Mapping[str, Sequence[Message]]:
    """What a policy would do with the tools to solve a task ("gold"), and what must not solve it ("empty")."""
    row = Row.model_validate(task.gold)
    patch = row.patch if row.patch.endswith("\n") else f"{row.patch}\n"
    apply = f"git apply --whitespace=nowarn - <<'END_OF_PATCH'\n{patch}END_OF_PATCH"
    return {"gold": (_call("bash", command=apply), _call("submit")), "empty": (_call("submit"),)}


def _call(name: str, **arguments: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall(name, arguments, "call"),))
