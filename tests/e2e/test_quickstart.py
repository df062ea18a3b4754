"""What the README shows first does what it says: the policy gets better."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunix_core.config import load_config
from tunix_core.plugins import Hub
from tunix_core.run import train

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.toml"


@pytest.mark.slow
def test_a_third_of_the_quickstart_makes_every_suite_better(tmp_path: Path) -> None:
    """On policy, where a run is a function of its seed."""
    how = ["steps=33", "eval.n=100", "scheduler.mode=on_policy", f"run_dir={tmp_path / 'run'}"]
    result = train(load_config(QUICKSTART, how), hub=Hub.load())
    suites = result.summary["suites"]
    assert set(suites) == {"games/frozen-lake", "math/arithmetic", "math/calculator"}
    assert all(row["after"] > row["before"] for row in suites.values()), suites
    assert result.summary["mean_after"] > result.summary["mean_before"] + 0.2, suites
