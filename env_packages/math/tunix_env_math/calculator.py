"""`math/calculator`: a tool suite, and its tool."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from inspect import isawaitable
from typing import Any

from tunix_core import StepResult, Task
from tunix_core.envs import ToolEnvironment
from tunix_core.tools import tool
from tunix_env_math.answers import marked_answer, plain_number, said

MAX_LENGTH = 200
MAX_DIGITS = 100
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def calculator(expression: str) -> str:
    """Computes an expression of numbers, + - * / ** and parentheses, such as "37 * 84".

    Whole numbers are exact; a fraction is given with ten digits.

    Raises:
        ValueError: it is no such expression, or its value has more than 100 digits.
    """
    text = expression.translate(_SAME).replace("^", "**").strip().removesuffix("=").strip()
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(text)} characters; at most {MAX_LENGTH} are taken")
    if not re.fullmatch(r"[0-9+\-*/(). ]+", text):
        raise ValueError(f"{expression!r:.100} must hold numbers, + - * / ** and parentheses only")
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r:.100} is not an expression; write it like 37 * 84") from None
    return _written(value)


def _value(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return _bounded(Fraction(str(node.value)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left), _value(right)))
    raise ValueError("only + - * / ** and parentheses are known")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent must be a whole number")
    digits = len(str(max(abs(base.numerator), base.denominator)))
    if abs(exponent) * digits > 2 * MAX_DIGITS:  # before it is computed
        raise ValueError(f"the power has more than {MAX_DIGITS} digits")
    return Fraction(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
        raise ValueError(f"the value has more than {MAX_DIGITS} digits")
    return value


def _written(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


# Made once: a schema costs more than an episode.
_TOOL = tool(calculator, description="Computes an expression such as 37 * 84.")


class CalculatorEnv(ToolEnvironment):
    """Asks for a result: 1 when `finish` gives it and the calculator was used, else 0.

    All is `async`, and the calculator is quick: an episode needs no thread of its own.

    Args:
        require_call: an answer without an earlier successful calculator call scores 0.
    """

    def __init__(
        self, task: Task | Mapping[str, Any] | None = None, *, require_call: bool = True, **kwargs: Any
    ) -> None:
        used = replace(_TOOL, fn=self._calculate)
        super().__init__(task, **{"tools": (used,), "max_steps": 4, **kwargs})
        self.require_call = require_call
        self.called = False

    async def _initial_observation(self) -> Any:
        return self.task

    async def _calculate(self, expression: str) -> str:
        value = calculator(expression)
        self.called = True
        return value

    async def _step_impl(self, action: Any) -> Any:
        if isinstance(action, str):  # an answer in plain text is not given with finish
            return StepResult(None, 0.0, terminated=True, info={"verdict": "no finish call"})
        result = super()._step_impl(action)
        return await result if isawaitable(result) else result

    def _grade(self, answer: str) -> float:
        text = said(answer)
        marked = marked_answer(text)
        value = plain_number(text if marked is None else marked)
        right = value is not None and value == plain_number(str(self.full_task.gold))
        return float(right and (self.called or not self.require_call))
