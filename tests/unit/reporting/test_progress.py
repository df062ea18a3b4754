"""What a run says: whole lines in a file, a live table on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tunix_core.reporting import Progress

ROW = {
    "step": 4,
    "tokens_per_s": 12345.6,
    "staleness_mean": 0.5,
    "trained_tokens": 100,
    "grad_norm": 0.1234,
    "suite/games/frozen-lake/score": 0.5,
    "suite/[x]/score": 0.25,
    "suite/[x]/groups": 3,
}


def test_elsewhere_than_on_a_terminal_a_step_is_one_whole_line() -> None:
    out = io.StringIO()
    with Progress(10, console=Console(file=out, width=30)) as progress:
        progress.step(ROW)
        progress.step({"step": 5})
        progress.say("Go on with: tunix train runs/a long name [1]/config.toml --resume")
    step, short, said = out.getvalue().splitlines()
    assert step == (
        "step 5  games/frozen-lake 0.500  [x] 0.250  sampled tokens/s 12,346  staleness 0.50  gradient norm 0.123"
    )
    assert short.strip() == "step 6"
    assert said == "Go on with: tunix train runs/a long name [1]/config.toml --resume"


def test_a_step_in_which_nothing_was_trained_has_no_staleness() -> None:
    out = io.StringIO()
    with Progress(10, console=Console(file=out)) as progress:
        progress.step({"step": 0, "staleness_mean": 0.0, "trained_tokens": 0})
        progress.step({"step": 1, "staleness_mean": 0.0, "trained_tokens": 7})
    assert out.getvalue().splitlines() == ["step 1  staleness –", "step 2  staleness 0.00"]


def test_on_a_terminal_it_draws_what_the_run_waits_for() -> None:
    out = io.StringIO()
    with Progress(
        10, done=2, waiting=lambda: "groups of sums", console=Console(file=out, force_terminal=True)
    ) as shown:
        shown.step(ROW)
    text = out.getvalue()
    assert "groups of sums" in text and "games/frozen-lake" in text and "[x]" in text and "5/10" in text
    assert "step 5  " not in text


def test_the_screen_is_given_back_whatever_happens() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError), Progress(1, console=Console(file=out, force_terminal=True)):
        raise ValueError
    assert "\x1b[?25l" in out.getvalue() and "\x1b[?25h" in out.getvalue()  # the cursor, hidden and shown again
