from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunix_env_math.answers import marked_answer, plain_number, quick_verdict, said


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("68", "68"), (" -5 ", "-5"), ("−5", "-5"), ("+7", "7"), ("5.", "5"), ("5.0", "5"), (".5", "1/2"),
        ("1,000", "1000"), ("1{,}000", "1000"), ("$68$", "68"), (r"\$18.00", "18"), ("007", "7"),
    ],
)  # fmt: skip
def test_what_is_just_a_number(text: str, value: str) -> None:
    assert plain_number(text) == Fraction(value)


@pytest.mark.parametrize("text", ["", "x", "1/2", "1 2", "1,00", "3 + 4", "2^3", "5 cm", "1e3", "--5", "5..", "٣", "."])
def test_what_is_not(text: str) -> None:
    assert plain_number(text) is None


@given(st.integers(-(10**30), 10**30))
def test_every_integer_is_read_exactly(number: int) -> None:
    assert plain_number(str(number)) == plain_number(f"{number:,}") == number
    assert quick_verdict(str(number), f"#### {number}") is True
    assert quick_verdict(str(number), rf"\boxed{{{number + 1}}}") is False


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("no mark", None),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed{}", ""),
        (r"\boxed{7", "7"),
        ("so\n#### 18\n", "18"),
        ("#### 18\n\\boxed{19}", "19"),
        ("\\boxed{19}\n#### 18", "18"),
    ],
)
def test_where_the_answer_stands(text: str, answer: str | None) -> None:
    assert marked_answer(text) == answer


def test_what_is_thought_is_not_said() -> None:
    assert said("<think>3</think> 4") == "4"
    assert said("3</think> 4") == "4"
    assert said("4 <think>3") == "4"


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        ("68", True), ("68.", True), ("68.0", True), ("23 + 45 = 68", True), (r"It is \boxed{68}", True),
        ("x = 68", True),
        ("67", False), ("", False), ("no idea", False), (r"\boxed{}", False), (r"68 or \boxed{67}", False),
        ("23 + 45", False), ("= 23+45", False), (r"\boxed{23 + 45}", False), (r"\boxed{4 \times 17}", False),
        (r"\boxed{4(17)}", False), ("4*17", False), ("4×17", False), ("68 + 0", False), ("I say 23 + 45", False),
        (r"\boxed{68!}", False), (r"\boxed{(60) + 8}", False), (r"\boxed{60-(-8)}", False),
        ("The answer is 68", None), (r"\boxed{\frac{136}{2}}", None), (r"\boxed{68\text{ apples}}", None),
    ],
)  # fmt: skip
def test_the_quick_verdict_never_takes_the_problem_for_its_answer(response: str, verdict: bool | None) -> None:
    assert quick_verdict("68", response) is verdict


def test_a_gold_that_is_no_number_has_no_quick_verdict() -> None:
    assert quick_verdict("1/2", "0.5") is None


@given(st.text(max_size=60))
def test_whatever_is_written_is_read_without_an_error(text: str) -> None:
    assert quick_verdict("68", text) in (True, False, None)
