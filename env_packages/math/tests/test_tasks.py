from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tunix_env_math.problems import LEVELS, NAMES, NOUNS, draw_arithmetic, draw_calculator
from tunix_env_math.tasks import make_arithmetic, make_calculator

from tunix_core.rewards import GoldError, close_shared_workers
from tunix_core.types import Task

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("make", [make_arithmetic, make_calculator])
SYMBOLS = re.compile(r"(?:What is|Use the calculator:) ([0-9 +*-]+)\??")


@BOTH
@given(index=st.integers(0, 10**9), seed=st.integers(0, 2**63), split=st.sampled_from(["train", "eval"]))
@settings(max_examples=30)
def test_a_task_is_a_function_of_split_seed_and_index(make: Make, index: int, seed: int, split: str) -> None:
    task = make(split, seed).get(index)
    assert task == make(split, seed).get(index)
    assert task.split == split
    assert Task.from_json(task.to_json()) == task


@BOTH
def test_ids_are_unique_and_seeds_give_other_streams(make: Make) -> None:
    tasks = [make("train", 0).get(i) for i in range(200)]
    assert len({t.id for t in tasks}) == 200
    assert [t.payload for t in tasks] != [make("train", 1).get(i).payload for i in range(200)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("word_share", [0.0, 1.0])
def test_no_problem_of_train_is_in_eval(level: int, word_share: float) -> None:
    options = {"levels": [level], "word_share": word_share}
    train = {_nameless(make_arithmetic("train", 0, **options).get(i).payload["question"]) for i in range(1500)}
    held = {_nameless(make_arithmetic("eval", 1, **options).get(i).payload["question"]) for i in range(500)}
    assert not train & held
    assert len(held) >= 10


def test_no_calculation_of_train_is_in_eval() -> None:
    train = {make_calculator("train", 0).get(i).payload["question"] for i in range(3000)}
    held = {make_calculator("eval", 0).get(i).payload["question"] for i in range(1000)}
    assert not train & held
    assert len(held) > 900


def test_operations_are_asked_as_often_as_each_other_in_their_ranges() -> None:
    options = {"operations": {"+": [0, 99], "*": [0, 12]}}
    train, held = make_arithmetic("train", 0, **options), make_arithmetic("eval", 0, **options)
    tasks = [train.get(i) for i in range(600)]
    sums, products = ([t for t in tasks if sign in t.payload["question"]] for sign in "+*")
    assert len(sums) + len(products) == 600 and abs(len(sums) - 300) < 60
    for asked, most, value in ((sums, 99, int.__add__), (products, 12, int.__mul__)):
        numbers = [[int(n) for n in re.findall(r"\d+", t.payload["question"])] for t in asked]
        assert max(map(max, numbers)) == most
        assert [t.gold for t in asked] == [str(value(*pair)) for pair in numbers]
    assert not {t.payload["question"] for t in tasks} & {held.get(i).payload["question"] for i in range(200)}


@pytest.mark.parametrize(
    ("operations", "told"),
    [
        ({"/": [0, 9]}, "expected some of +, -, *"),
        ({"+": [0, 8]}, "at least 9 apart"),
        ({"+": [0.5, 20]}, "at least 9"),
    ],
)
def test_operations_that_cannot_be_are_refused(operations: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        make_arithmetic("train", 0, operations=operations)


def _nameless(question: str) -> str:
    for word in (*NAMES, *NOUNS):
        question = question.replace(word, "_")
    return question


@BOTH
def test_the_gold_is_what_the_question_asks(make: Make) -> None:
    options = {"levels": LEVELS, "word_share": 0.0} if make is make_arithmetic else {}
    source = make("train", 3, **options)
    for task in map(source.get, range(300)):
        match = SYMBOLS.fullmatch(task.payload["question"])
        assert match, task
        assert task.gold == str(eval(match[1]))


def test_word_problems_name_things_and_have_the_gold_of_their_numbers() -> None:
    source = make_arithmetic("train", 0, levels=LEVELS, word_share=1.0)
    for task in map(source.get, range(300)):
        question = task.payload["question"]
        a, b, *rest = map(int, re.findall(r"\d+", question))
        c = rest[0] if rest else 0
        possible = {a + b, a - b, a * b, a + b - c, a * b + c, a * b - c}
        assert int(task.gold) in possible
        assert min(a, b) >= 2 and any(noun in question for noun in NOUNS) and "{" not in question


def test_the_share_of_word_problems_and_the_levels_are_as_asked() -> None:
    tasks = [make_arithmetic("train", 0, levels=[1, 3], word_share=0.25).get(i) for i in range(2000)]
    words = np.mean([not t.payload["question"].startswith("What is") for t in tasks])
    assert abs(words - 0.25) < 0.04
    assert abs(np.mean([t.difficulty == 3 for t in tasks]) - 0.5) < 0.05
    assert {t.difficulty for t in tasks} == {1.0, 3.0}


@pytest.mark.parametrize(
    ("level", "longest"), [(1, r"\d [+-] \d"), (2, r"\d\d \+ \d|[2-5] \* \d"), (3, r"\d\d [+-] \d\d|\d \* \d")]
)
def test_the_levels_have_numbers_of_their_size(level: int, longest: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        problem = draw_arithmetic(rng, level, 0.0, "train")
        assert re.fullmatch(rf"What is (?:{longest})\?", problem.question), problem
        assert problem.answer >= 0


def test_calculations_have_two_or_three_digits() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert re.fullmatch(r"Use the calculator: \d{2,3} [-+*] \d{2,3}", draw_calculator(rng, "eval").question)


@BOTH
def test_a_source_is_endless_unless_given_a_length(make: Make) -> None:
    with pytest.raises(TypeError, match="endless"):
        len(make("train", 0))
    short = make("train", 0, length=5)
    assert len(short) == 5
    assert short.get(4) == make("train", 0).get(4)
    for index in (-1, 5):
        with pytest.raises(IndexError):
            short.get(index)
    with pytest.raises(ValueError, match="length=-1"):
        make("train", 0, length=-1)


@pytest.mark.parametrize("options", [{"levels": []}, {"levels": [6]}, {"word_share": 1.5}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make_arithmetic("train", 0, **options)


# ---- a file of one's own -----------------------------------------------------------------------------
def write(path: Path, *lines: Any) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


def test_the_problems_of_a_file_are_split_and_shuffled(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", *({"question": f"Half of {2 * i}?", "answer": i} for i in range(100)))
    sources = [make_arithmetic(split, 0, path=path) for split in ("train", "eval")]
    questions = [{s.get(i).payload["question"] for i in range(len(s))} for s in sources]
    assert len(questions[0]) + len(questions[1]) == 100 and not questions[0] & questions[1]
    assert len(questions[1]) in range(5, 25)
    task = sources[0].get(0)
    assert task.payload["question"] == f"Half of {2 * int(task.gold)}?"
    with pytest.raises(IndexError):
        sources[0].get(100)


def test_a_gold_that_can_not_be_read_is_refused_when_the_file_is_loaded(tmp_path: Path) -> None:
    golds = ["1/2", "", r"\sqrt{2}", r"\frac{1}{"]
    path = write(tmp_path / "p.jsonl", *({"question": f"q{i}", "answer": gold} for i, gold in enumerate(golds)))
    with pytest.raises(GoldError, match=r"2 answers .*line 2.*line 4"):
        make_arithmetic("train", 0, path=path)
    close_shared_workers()


def test_a_line_of_another_form_is_refused_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"question": "q", "answer": 1}, {"problem": "q"})
    with pytest.raises(ValueError, match=r"p\.jsonl:2: expected"):
        make_arithmetic("train", 0, path=path)
