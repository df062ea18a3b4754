"""Careless teachers for three suites: they know the right way, and often take a short cut.

A policy that imitates them starts mediocre: its habit is the short cut, and the right way is in it.

- arithmetic: adds without carrying, subtracts without borrowing, adds where it should multiply;
- calculator: finishes with a guess, without having called the tool;
- frozen lake: walks down and right as if there were no holes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tunix_env_games.frozen_lake import find_path

from tunix_core import Message, Task
from tunix_core.types import ToolCall

GRID = re.compile(r"[P.OG]( [P.OG])+")
LEGEND = str.maketrans("P.O", "FFH")
OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


Teacher = Callable[[Task, Message, bool], Message]  # (task, what was heard last, careful) -> what to say


def arithmetic(task: Task, heard: Message, careful: bool) -> Message:
    answer = int(task.gold)
    return Message.of("assistant", str(answer if careful else short_cut(heard.text, answer)))


def calculator(task: Task, heard: Message, careful: bool) -> Message:
    if heard.role == "tool":
        return _call("finish", answer=heard.text)
    expression = heard.text.rpartition(": ")[2]
    if careful:
        return _call("calculator", expression=expression)
    left, sign, right = expression.split(" ")
    return _call("finish", answer=str(without_carry(int(left), sign, int(right))))


def frozen_lake(task: Task, heard: Message, careful: bool) -> Message:
    rows = ["".join(line.split(" ")) for line in heard.text.splitlines() if GRID.fullmatch(line)]
    row = next(i for i, line in enumerate(rows) if "P" in line)
    position = row * len(rows[0]) + rows[row].index("P")
    if not careful:
        return Message.of("assistant", "down" if row < len(rows) - 1 else "right")
    lake = [line.translate(LEGEND) for line in rows]
    return Message.of("assistant", (find_path(lake, position) or ["down"])[0])


def short_cut(question: str, answer: int) -> int:
    """The habitual answer to a question of two numbers; the right one where it can't be told."""
    left, right = (int(number) for number in re.findall(r"\d+", question)[:2])
    for sign, operation in OPERATIONS.items():
        if operation(left, right) == answer:
            return without_carry(left, sign, right)
    return answer


def without_carry(left: int, sign: str, right: int) -> int:
    """Column by column, nothing carried or borrowed; products become such sums."""
    if sign == "*":
        return without_carry(left, "+", right)
    width = max(len(str(left)), len(str(right)))
    columns = zip(f"{left:0{width}}", f"{right:0{width}}", strict=True)
    return int("".join(str(OPERATIONS[sign](int(a), int(b)) % 10) for a, b in columns))


def _call(name: str, **arguments: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall(name, arguments),))


TEACHERS: Mapping[str, Teacher] = {
    "math/arithmetic": arithmetic,
    "math/calculator": calculator,
    "games/frozen-lake": frozen_lake,
}
