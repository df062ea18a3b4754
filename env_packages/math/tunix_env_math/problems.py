"""Problems with whole numbers: drawn, told, and sorted into train and eval.

A problem's key is what makes it the problem it is (its form and its numbers, in order). The key
alone decides the split, so no problem of one is in the other, whatever the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add, mul, sub
from typing import Literal

import numpy as np

Split = Literal["train", "eval"]
EVAL_SHARE = 8  # one key in so many is for eval
LEVELS = (1, 2, 3, 4, 5)
OPERATIONS: Mapping[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul}

NAMES = ("Ann", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe")
NOUNS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, its answer, and the key that names it in any wording of names and nouns."""

    key: str
    question: str
    answer: int


@dataclass(frozen=True, slots=True)
class _Form:
    """One kind of problem: in symbols, its value, the range of each number, and in words."""

    symbols: str
    value: Callable[..., int]
    ranges: tuple[tuple[int, int], ...]
    words: tuple[str, ...] = ()


_ADD = (
    "{name} has {0} {noun} and buys {1} more. How many {noun} now?",
    "{name} has {0} {noun}. {other} has {1}. How many in all?",
    "There are {0} red and {1} blue {noun}. How many in all?",
)
_SUB = (
    "{name} has {0} {noun} and gives away {1}. How many are left?",
    "{name} has {0} {noun}. {other} has {1}. How many more has {name}?",
    "{name} had {0} {noun} and lost {1}. How many are left?",
)
_MUL = (
    "{name} has {0} boxes of {1} {noun}. How many {noun}?",
    "{0} bags hold {1} {noun} each. How many {noun}?",
)
_ADD_SUB = ("{name} has {0} {noun}, buys {1} and loses {2}. How many now?",)
_MUL_ADD = ("{name} has {0} boxes of {1} {noun} and {2} more. How many {noun}?",)
_MUL_SUB = ("{name} has {0} boxes of {1} {noun} and loses {2}. How many are left?",)

ONE, TABLE, TWO, THREE = (0, 9), (2, 5), (10, 99), (100, 999)
FORMS: dict[int, tuple[_Form, ...]] = {
    1: (_Form("{0} + {1}", add, (ONE, ONE), _ADD), _Form("{0} - {1}", sub, (ONE, ONE), _SUB)),
    2: (_Form("{0} + {1}", add, (TWO, ONE), _ADD), _Form("{0} * {1}", mul, (TABLE, ONE), _MUL)),
    3: (
        _Form("{0} + {1}", add, (TWO, TWO), _ADD),
        _Form("{0} - {1}", sub, (TWO, TWO), _SUB),
        _Form("{0} * {1}", mul, (ONE, ONE), _MUL),
    ),
    4: (_Form("{0} + {1}", add, (THREE, THREE), _ADD), _Form("{0} * {1}", mul, (TWO, ONE), _MUL)),
    5: (
        _Form("{0} + {1} - {2}", lambda a, b, c: a + b - c, (TWO, TWO, TWO), _ADD_SUB),
        _Form("{0} * {1} + {2}", lambda a, b, c: a * b + c, (ONE, ONE, TWO), _MUL_ADD),
        _Form("{0} * {1} - {2}", lambda a, b, c: a * b - c, (TWO, ONE, ONE), _MUL_SUB),
    ),
}
CALCULATOR = tuple(
    _Form(symbols, value, ranges)
    for symbols, value in (("{0} + {1}", add), ("{0} - {1}", sub), ("{0} * {1}", mul))
    for ranges in ((TWO, TWO), (TWO, THREE), (THREE, TWO), (THREE, THREE))
)


def split_of(key: str) -> Split:
    """Whether a problem is for training or for evaluation: the same on every machine, in every run."""
    return "eval" if hashlib.sha256(key.encode()).digest()[0] % EVAL_SHARE == 0 else "train"


def draw_arithmetic(rng: np.random.Generator, level: int, word_share: float, split: Split) -> Problem:
    """A problem of that level and split: a bare one, or with probability `word_share` one in words."""
    form = FORMS[level][rng.integers(len(FORMS[level]))]
    words = form.words[rng.integers(len(form.words))] if rng.random() < word_share else ""
    least = 2 if words else 0  # "1 apples" is no English
    while True:
        numbers = _draw(rng, form.ranges, least)
        answer = form.value(*numbers)
        key = "|".join((words or form.symbols, *map(str, numbers)))
        if answer >= 0 and split_of(key) == split:
            return Problem(key, _told(rng, form, words, numbers), answer)


def draw_operation(rng: np.random.Generator, operations: Mapping[str, Sequence[int]], split: Split) -> Problem:
    """Two numbers to add, subtract or multiply, the operation as likely as the others.

    Args:
        operations: of OPERATIONS, each with the least and the largest number it is asked of.
    """
    symbol = sorted(operations)[rng.integers(len(operations))]
    low, high = operations[symbol]
    form = _Form(f"{{0}} {symbol} {{1}}", OPERATIONS[symbol], ((low, high), (low, high)))
    while True:
        numbers = _draw(rng, form.ranges, 0)
        expression = form.symbols.format(*numbers)
        if split_of(expression) == split:
            return Problem(expression, _told(rng, form, "", numbers), form.value(*numbers))


def draw_calculator(rng: np.random.Generator, split: Split) -> Problem:
    """Two numbers of two or three digits, to add, subtract or multiply. The answer may be negative."""
    form = CALCULATOR[rng.integers(len(CALCULATOR))]
    while True:
        numbers = _draw(rng, form.ranges, 0)
        expression = form.symbols.format(*numbers)
        if split_of(expression) == split:
            return Problem(expression, f"Use the calculator: {expression}", form.value(*numbers))


def _draw(rng: np.random.Generator, ranges: tuple[tuple[int, int], ...], least: int) -> tuple[int, ...]:
    return tuple(int(rng.integers(max(low, least), high, endpoint=True)) for low, high in ranges)


def _told(rng: np.random.Generator, form: _Form, words: str, numbers: tuple[int, ...]) -> str:
    if not words:
        return f"What is {form.symbols.format(*numbers)}?"
    name, other = (NAMES[i] for i in rng.choice(len(NAMES), 2, replace=False))
    return words.format(*numbers, name=name, other=other, noun=NOUNS[rng.integers(len(NOUNS))])
