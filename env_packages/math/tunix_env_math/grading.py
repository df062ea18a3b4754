r"""Whether a response's final answer equals the gold, as mathematics.

Math-Verify reads and compares; what it reads too kindly is decided here first: number bases, units,
unevaluated sums, a later answer that corrects an earlier one, and what was only thought. Its own
timeouts are off, since they need signals on the main thread: call `grade` in a worker process that
can be killed (`cpu_bound=True` does), because an answer like 9^{9^{9}} computes for ever.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from math_verify import parse
from math_verify import verify as equal
from sympy import Basic, Derivative, Integral, Limit, Product, Sum, Union

from tunix_core.rewards import Episode, GoldError, reward
from tunix_env_math.answers import marked_answer, plain_number, said, tidy

Verdict = Literal["correct", "incorrect", "unparsable", "bad_gold"]

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off, as they must be

_WORDS = r"\\(?:text|mathrm|mbox|textrm|operatorname)\s*\{"
_UNIT = re.compile(rf"(?:\s|~|\\[,;! ])*(?:{_WORDS}\s*([^{{}}]*?)\s*\}}(?:\^\{{?(\d)\}}?)?|\s([a-zA-Z]+)(?:\^(\d))?)$")
_BASE = re.compile(r"(\d[0-9A-F]*)_\{?(\d+)\}?")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?|[-+]?\.\d+)[eE]([-+]?\d+)")
_MIXED = re.compile(r"([-+]?)(\d+)\s+(\d+)/(\d+)")
_OR = re.compile(rf"\s*(?:{_WORDS}\s*or\s*\}}|\\lor|\\vee|\bor\b)\s*")
_COMPARES = re.compile(r"[<>]|\\(?:leq?|geq?|lt|gt)\b")
_UNEVALUATED = (Sum, Product, Integral, Limit, Derivative)
_UNIT_NAMES = {
    name: names.split()[0]
    for names in (
        "m meter metre", "cm centimeter centimetre", "mm millimeter millimetre", "km kilometer kilometre",
        "in inch inche", "ft foot feet", "yd yard", "mi mile", "g gram", "kg kilogram", "mg milligram",
        "lb pound", "oz ounce", "s sec second", "ms millisecond", "min minute", "h hr hour", "day", "week",
        "year", "l liter litre", "ml milliliter millilitre", "degree", "radian", "mph", "kph",
    )
    for name in names.split()
}  # fmt: skip


@reward(range=(0.0, 1.0), cpu_bound=True, cpu_s=5.0)
def verify(episode: Episode) -> float:
    """1 when the policy's last message gives the task's gold, else 0. Raises GoldError when it can't be read."""
    verdict = grade(str(episode.task.gold), episode.final_text)
    if verdict == "bad_gold":
        raise GoldError(f"the gold {episode.task.gold!r:.100} of task {episode.task.id!r} can't be read as mathematics")
    return float(verdict == "correct")


def grade(gold: str, response: str) -> Verdict:
    r"""The verdict on a response. May compute for ever: call it where it can be killed.

    Args:
        gold: the reference answer; LaTeX or plain, bare or marked like a response's.
        response: all that was said. The last \boxed{} or "####" counts, else what Math-Verify finds.
    """
    expected = _read(gold)
    if not expected.values:
        return "bad_gold"
    given = _read(response)
    if not given.values:
        return "unparsable"
    return "correct" if _same(expected, given) else "incorrect"


def readable_golds(golds: Sequence[str]) -> list[bool]:
    """Which golds can be graded against."""
    return [bool(_read(gold).values) for gold in golds]


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer as read: its text, what Math-Verify made of it, its unit and its base ("" without)."""

    text: str
    values: Sequence[Any]
    unit: str = ""
    base: str = ""


def _read(response: str) -> _Answer:
    text = said(response)
    marked = marked_answer(text)
    if marked is None and len(text.split()) > 1 and not _is_formula(text):
        return _Answer(text, _parse(text))  # prose: Math-Verify knows where answers stand in it
    answer = tidy(text if marked is None else marked)
    if based := _BASE.fullmatch(answer):
        return _in_base(answer, based[1], int(based[2]))
    answer, unit = _without_unit(answer)
    return _Answer(answer, _values(_spelled_out(answer)), unit)


def _is_formula(text: str) -> bool:
    """True for a bare answer, which has no words but those of LaTeX and of units."""
    bare = re.sub(rf"{_WORDS}[^{{}}]*\}}|\\[a-zA-Z]+", "", _without_unit(text)[0])
    return not re.search(r"[a-zA-Z]{2,}", bare)


def _in_base(answer: str, digits: str, base: int) -> _Answer:
    try:
        return _Answer(answer, _parse(f"${int(digits, base)}$"), base=str(base))
    except ValueError:
        return _Answer(answer, ())


def _without_unit(answer: str) -> tuple[str, str]:
    """The answer without the unit at its end, and the unit's one name."""
    match = _UNIT.search(answer)
    if match is None or not match.start():
        return answer, ""
    word, power = (match[1] or match[3] or "").lower().rstrip("."), match[2] or match[4] or ""
    name = _UNIT_NAMES.get(word) or _UNIT_NAMES.get(word.removesuffix("s"))
    return (answer[: match.start()], name + power) if name else (answer, "")


def _spelled_out(answer: str) -> str:
    """Notations that Math-Verify reads otherwise: 1e-3 and 1 1/2."""
    if match := _SCIENTIFIC.fullmatch(answer):
        return rf"{match[1]}\times 10^{{{match[2]}}}"
    if match := _MIXED.fullmatch(answer):
        return rf"{match[1]}{match[2]}\frac{{{match[3]}}}{{{match[4]}}}"
    return answer


def _values(answer: str) -> Sequence[Any]:
    cases = _OR.split(answer)
    if len(cases) > 1 and all(_COMPARES.search(case) for case in cases):
        return _union([_parse(f"${case}$") for case in cases])
    return _parse(f"${answer}$") if answer else ()


def _union(cases: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """ "x < 3 or x > 5" as one set of numbers; nothing when a case is no set."""
    try:
        return (Union(*(case[0].as_set() for case in cases)),)
    except (IndexError, AttributeError, NotImplementedError, TypeError, ValueError):
        return ()


def _parse(text: str) -> Sequence[Any]:
    """What Math-Verify reads: an expression, and its text behind it; nothing when there is no expression."""
    found = parse(text, parsing_timeout=None)  # type: ignore[arg-type]
    return found if found and isinstance(found[0], Basic) else _letters(found)


def _letters(found: Sequence[Any]) -> Sequence[Any]:
    """A matrix, or text that Math-Verify could not read: only a word can be compared as it stands."""
    if found and not isinstance(found[0], str):
        return found
    return [text for text in found[:1] if re.fullmatch(r"[A-Za-z][A-Za-z ]*", text)]


def _same(gold: _Answer, given: _Answer) -> bool:
    if gold.base and given.base != gold.base:
        return not given.base and given.text.lstrip("0") == _BASE.sub(r"\1", gold.text).lstrip("0")
    if gold.unit and given.unit and gold.unit != given.unit:
        return False
    exact = plain_number(gold.text), plain_number(given.text)
    if exact[0] is not None and exact[1] is not None:
        return exact[0] == exact[1]
    if _unevaluated(given.values[0]) and not _unevaluated(gold.values[0]):
        return False
    return bool(equal(list(gold.values), list(given.values), allow_set_relation_comp=True, timeout_seconds=None))


def _unevaluated(value: Any) -> bool:
    return isinstance(value, Basic) and value.has(*_UNEVALUATED)
