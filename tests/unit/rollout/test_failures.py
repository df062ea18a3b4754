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
