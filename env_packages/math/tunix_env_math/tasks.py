"""The tasks of the suites: endless streams of drawn problems, or the lines of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tunix_core import Task
from tunix_core.rewards import GoldError, grade_in_worker
from tunix_env_math.answers import plain_number
from tunix_env_math.problems import (
    LEVELS,
    OPERATIONS,
    Problem,
    Split,
    draw_arithmetic,
    draw_calculator,
    draw_operation,
    split_of,
)

Draw = Callable[[np.random.Generator, Split], tuple[Problem, float]]
GOLDS_PER_CALL = 50


class DrawnTasks:
    """Problems by index: `get` is a pure function of (split, seed, index).

    Args:
        name: begins each task's id.
        draw: (rng, split) -> (problem, difficulty).
        length: how many tasks; 0 is endless, and then `len` raises TypeError.
    """

    def __init__(self, name: str, draw: Draw, split: Split, seed: int, length: int) -> None:
        if length < 0:
            raise ValueError(f"length={length}: expected how many tasks, or 0 for endless")
        self._name, self._draw, self._seed, self._length = name, draw, seed, length
        self._split: Split = split

    def __len__(self) -> int:
        if not self._length:
            raise TypeError(f"the tasks of {self._name} are endless; give the option length for a number of them")
        return self._length

    def get(self, index: int) -> Task:
        if index < 0 or (self._length and index >= self._length):
            raise IndexError(f"task {index} of {self._name}, which has {self._length or 'endlessly many'} from 0")
        rng = np.random.default_rng([self._seed, index, self._split == "eval"])
        problem, difficulty = self._draw(rng, self._split)
        return Task(
            id=f"{self._name}-{self._seed}-{index}",
            payload={"question": problem.question},
            split=self._split,
            difficulty=difficulty,
            gold=str(problem.answer),
        )


class FileTasks:
    """The problems of a file that fall into one split, in an order that the seed decides.

    `get(i)` is a pure function of (split, seed, i), as long as the file stays the same.
    """

    def __init__(self, path: str, split: Split, seed: int) -> None:
        lines = [line for line in read_problems(path) if split_of(line["question"]) == split]
        order = np.random.default_rng([seed]).permutation(len(lines))
        self._lines, self._path = [lines[i] for i in order], path
        self._split: Split = split

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, index: int) -> Task:
        if not 0 <= index < len(self._lines):
            raise IndexError(f"task {index} of {self._path}, which has {len(self._lines)} for {self._split}, from 0")
        line = self._lines[index]
        payload = {"question": line["question"]}
        return Task(id=f"line-{line['line']}", payload=payload, split=self._split, gold=line["answer"])


def make_arithmetic(
    split: Split,
    seed: int,
    *,
    levels: Sequence[int] = (1, 2, 3),
    word_share: float = 0.25,
    operations: Mapping[str, Sequence[int]] | None = None,
    length: int = 0,
    path: str = "",
    **_: Any,
) -> DrawnTasks | FileTasks:
    """The tasks of `math/arithmetic`; each level, or each operation, is as frequent as the others.

    Args:
        levels: of 1 (one digit, + and -), 2 (two digits + one, small tables), 3 (two digits + and -,
            one-digit products), 4 (three-digit sums, two digits times one), 5 (two operations).
        word_share: the share told in words, 0 to 1.
        operations: instead of levels: {"+": [least, largest], …} of "+", "-", "*" on two such numbers, at least
            10 of them; none in words.
        length: how many; 0 is endless.
        path: a JSONL file of {"question", "answer"} to take instead; one question in eight is for eval.

    Raises:
        ValueError: an option can't be used.
        GoldError: an answer in the file can't be read as mathematics.
    """
    if path:
        return FileTasks(path, split, seed)
    if not levels or not set(levels) <= set(LEVELS):
        raise ValueError(f"levels={levels!r}: expected some of {list(LEVELS)}")
    if not 0 <= word_share <= 1:
        raise ValueError(f"word_share={word_share!r}: expected a share between 0 and 1")

    if operations:
        _check_operations(operations)
        return DrawnTasks(
            "arithmetic", lambda rng, split: (draw_operation(rng, operations, split), 0.0), split, seed, length
        )

    def draw(rng: np.random.Generator, split: Split) -> tuple[Problem, float]:
        level = levels[int(rng.integers(len(levels)))]
        return draw_arithmetic(rng, level, word_share, split), float(level)

    return DrawnTasks("arithmetic", draw, split, seed, length)


def _check_operations(operations: Mapping[str, Sequence[int]]) -> None:
    for symbol, numbers in operations.items():
        if symbol not in OPERATIONS:
            raise ValueError(f"operations has {symbol!r}: expected some of {', '.join(OPERATIONS)}")
        if len(numbers) != 2 or not all(isinstance(n, int) for n in numbers) or not numbers[1] - numbers[0] >= 9:
            raise ValueError(
                f"operations[{symbol!r}] = {numbers!r}: expected the least and the largest number, at least 9 apart"
            )


def make_calculator(split: Split, seed: int, *, length: int = 0, **_: Any) -> DrawnTasks:
    """The tasks of `math/calculator`; their difficulty is the number of the answer's digits."""

    def draw(rng: np.random.Generator, split: Split) -> tuple[Problem, float]:
        problem = draw_calculator(rng, split)
        return problem, float(len(str(abs(problem.answer))))

    return DrawnTasks("calculator", draw, split, seed, length)


def read_problems(path: str) -> list[Mapping[str, Any]]:
    """The lines of a JSONL file as {"question", "answer", "line"}, all text but the line's number.

    Raises:
        ValueError: a line is not of that form.
        GoldError: an answer can't be read; all such lines are named.
    """
    with Path(path).open(encoding="utf-8") as file:
        problems = [_read_line(path, number, text) for number, text in enumerate(file, 1) if text.strip()]
    hard = [p for p in problems if plain_number(p["answer"]) is None]
    bad = [p for at in range(0, len(hard), GOLDS_PER_CALL) for p in _unreadable(hard[at : at + GOLDS_PER_CALL])]
    if bad:
        named = ", ".join(f"line {p['line']}: {p['answer']!r:.60}" for p in bad[:10])
        raise GoldError(f"{path}: {len(bad)} answers can't be read as mathematics ({named}); correct or remove them")
    return problems


def _read_line(path: str, number: int, text: str) -> Mapping[str, Any]:
    try:
        line = json.loads(text)
        return {"question": str(line["question"]), "answer": str(line["answer"]), "line": number}
    except (ValueError, KeyError, TypeError) as error:
        expected = '{"question": "...", "answer": "..."}'
        raise ValueError(f"{path}:{number}: expected {expected}, got {text.strip():.100}") from error


def _unreadable(problems: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    golds = [p["answer"] for p in problems]
    readable = grade_in_worker("tunix_env_math.grading:readable_golds", golds, cpu_s=30.0, wall_s=300.0)
    return [p for p, fine in zip(problems, readable, strict=True) if not fine]
