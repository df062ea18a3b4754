"""Where a failure was raised is in its message: the line of a plugin's code, not of a library's or of ours."""

from __future__ import annotations

import json
import statistics
from typing import Any

import numpy as np
import pytest

from tunix_core.envs.drive import checked_env
from tunix_core.errors import EnvError, EpisodeError, boundary, failure_of


def message_of(call: Any) -> str:
    with pytest.raises(EpisodeError) as caught, boundary("env.step", EnvError):
        call()
    return failure_of(caught.value).message


def own() -> None:
    raise KeyError("answer")


LINE = own.__code__.co_firstlineno + 1


def test_the_line_that_raised_is_named() -> None:
    assert message_of(own) == f"KeyError: 'answer' (test_failures.py:{LINE})"


@pytest.mark.parametrize(
    "call",
    [lambda: json.loads("{"), lambda: statistics.mean([]), lambda: np.linalg.inv(np.zeros((2, 2)))],
    ids=["json", "statistics", "numpy"],
)
def test_where_a_library_raises_it_is_the_line_that_called_it(call: Any) -> None:
    assert message_of(call).endswith(f"(test_failures.py:{call.__code__.co_firstlineno})")


def test_of_their_own_code_it_is_the_innermost_line() -> None:
    assert message_of(lambda: own()).endswith(f"(test_failures.py:{LINE})")


def test_our_own_code_is_not_named() -> None:
    assert message_of(lambda: checked_env(3)) == "an environment must be a tunix_core.envs.BaseTaskEnv, not int"


def late() -> None:
    raise TimeoutError


def long() -> None:
    raise ValueError("x" * 3000)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def mute() -> None:
    raise Mute


class Lying(Exception):
    __traceback__ = "nowhere"  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def lying() -> None:
    raise Lying("no")


@pytest.mark.parametrize(
    ("call", "begins"), [(late, "timed out"), (long, "ValueError: xxx"), (mute, "Mute"), (lying, "Lying: no")]
)
def test_whatever_it_is_like_it_has_words_and_a_line(call: Any, begins: str) -> None:
    message = message_of(call)
    assert message.startswith(begins) and message.endswith(f"(test_failures.py:{call.__code__.co_firstlineno + 1})")
    assert len(message) < 500
