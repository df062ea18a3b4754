from __future__ import annotations

import asyncio
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_for_tests import row
from tunix_env_swebench import parsing
from tunix_env_swebench.parsing import parse_pytest, statuses_of, worse

from tunix_core.rewards import GraderError

LOG = textwrap.dedent(
    """\
    ============================= test session starts ==============================
    tests/test_it.py .FsxXE                                                  [100%]
    PASSED at the beginning of a sentence that is captured
    =========================== short test summary info ============================
    PASSED tests/test_it.py::test_a
    SKIPPED [1] tests/test_it.py:7: not here
    XFAIL tests/test_it.py::test_x - known
    XPASS tests/test_it.py::test_y - known
    ERROR tests/test_it.py::test_e - RuntimeError: no
    FAILED tests/test_it.py::test_p[a - b] - assert 1 == 2
    PASSED tests/test_it.py::test_q[a b]
    """
)


def test_the_summary_of_pytest() -> None:
    found = parse_pytest(LOG)
    assert found["tests/test_it.py::test_a"] == "PASSED"
    assert found["tests/test_it.py::test_x"] == "XFAIL"
    assert found["tests/test_it.py::test_y"] == "FAILED"
    assert found["tests/test_it.py::test_e"] == "ERROR"
    assert found["tests/test_it.py::test_p[a - b]"] == "FAILED"
    assert found["tests/test_it.py::test_q[a b]"] == "PASSED"
    assert not any(name.startswith("[1]") for name in found)


def test_a_line_printed_later_takes_no_failure_back() -> None:
    assert parse_pytest("FAILED a::t - no\nPASSED a::t\n") == {"a::t": "FAILED"}
    assert parse_pytest("PASSED a::t\nERROR a::t - in teardown\n") == {"a::t": "ERROR"}


@given(st.sampled_from(parsing._ORDER), st.sampled_from(parsing._ORDER))
def test_the_worse_of_two_does_not_depend_on_their_order(one: str, other: str) -> None:
    assert worse(one, other) == worse(other, one) and worse(None, one) == one


@given(st.text(max_size=200))
def test_any_log_is_read_without_an_error(log: str) -> None:
    assert set(parse_pytest(log).values()) <= {*parsing._ORDER}


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import time; time.sleep(60)", "print('{')"])
def test_a_parser_that_is_lost_gives_no_statuses(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    child.write_text(code)
    monkeypatch.setattr(parsing, "_ASK", (sys.executable, str(child)))
    monkeypatch.setattr(parsing, "TIMEOUT_S", 1.0)
    with pytest.raises(GraderError, match="parser"):
        asyncio.run(statuses_of(row(log_parser="parse_log_pytest"), LOG))
