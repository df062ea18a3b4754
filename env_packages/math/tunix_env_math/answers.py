r"""Where in a response the answer stands, and what can be said of it without a computer algebra system.

An answer stands in the last \boxed{...}, after the last "####", or is the whole response. What was
thought between <think> and </think> is not an answer.
"""

from __future__ import annotations

import re
from fractions import Fraction

_BOX = re.compile(r"\\f?boxed\s*\{")
_HASHES = re.compile(r"####([^\n]*)")
_THOUGHT = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)
_SAME = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "×": "*", "·": "*", "÷": "/"})
_DOLLAR = r"(?:\\?\$\s*)?"
_NUMBER = re.compile(
    rf"{_DOLLAR}([-+]?)\s*{_DOLLAR}((?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d*)?|\.\d+)(?:\\?\$)?", re.ASCII
)
_OPERATION = re.compile(r"[0-9)}\]]\s*(?:[-+*/^!(]|\\(?:times|cdot|div|left\())")
MAX_DIGITS = 1000


def said(response: str) -> str:
    """The response without what was only thought; a thought that was never closed lasts to the end."""
    return _THOUGHT.sub("", response).rpartition("</think>")[2].strip()


def marked_answer(text: str) -> str | None:
    r"""The content of the last \boxed{...} or the line after the last "####", whichever is later; None
    without either. An empty box is an empty answer."""
    boxes, hashes = list(_BOX.finditer(text)), list(_HASHES.finditer(text))
    if boxes and (not hashes or boxes[-1].start() > hashes[-1].start()):
        return _braced(text, boxes[-1].end()).strip()
    return hashes[-1].group(1).strip() if hashes else None


def _braced(text: str, start: int) -> str:
    """The text from `start` to the brace that closes the one before it, or to the end."""
    depth, escaped = 1, False
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0) if not escaped else 0
        escaped = text[at] == "\\" and not escaped
        if depth == 0:
            return text[start:at]
    return text[start:]


def tidy(answer: str) -> str:
    """One sign for each thing: ASCII minus and operators, plain thousands, no final full stop."""
    answer = answer.translate(_SAME).replace("{,}", ",").strip().strip("$").strip()
    return answer.removesuffix(".").rstrip() if not answer.endswith("..") else answer


def plain_number(answer: str) -> Fraction | None:
    r"""The exact value of an answer that is just an integer or a decimal ("1,000", "-5.", "\$18.00")."""
    match = _NUMBER.fullmatch(tidy(answer))
    if match is None or len(match[2]) > MAX_DIGITS:
        return None
    value = Fraction(match[2].replace(",", "").removesuffix("."))
    return -value if match[1] == "-" else value


def quick_verdict(gold: str, response: str) -> bool | None:
    """Whether the response's answer is the number `gold`, where that is plain to see; else None.

    An answer that still holds an operation ("40 + 5", "9*5") is wrong: the number was asked for.

    Args:
        gold: an integer or decimal; for anything else the verdict is None.
        response: all that was said.
    """
    expected = plain_number(gold)
    if expected is None:
        return None
    text = said(response)
    marked = marked_answer(text)
    answer = tidy(text if marked is None else marked).rpartition("=")[2]
    value = plain_number(answer)
    if value is not None:
        return value == expected
    if not re.search(r"[0-9\\]", answer) or _OPERATION.search(answer):
        return False
    return None
