"""Whole runs with algorithms that need more of a run than GRPO does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_run import SMALL, TROUBLE

from tunix_core.config import load_config
from tunix_core.plugins import Hub
from tunix_core.run import train

SUITE = """
[[suite]]
env = "trouble/env"
group_size = 2
sampling = { max_tokens = 6 }
credit = { per = "turn" }
"""
Rows = list[dict[str, float]]


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[..., Rows]:
    """`rows_of("trainer.algorithm=…", …)` trains with these overrides and gives the metrics of each step."""

    def go(*overrides: str, steps: int = 2, **how: Any) -> Rows:
        text = SMALL.format(steps=steps, run_dir=tmp_path / "run") + SUITE
        result = train(load_config(None, overrides, text), hub=Hub.load(files=[TROUBLE]), **how)
        return [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]

    return go


def test_what_does_not_compare_scores_learns_where_all_are_equal(rows_of: Callable[..., Rows]) -> None:
    """From a teacher, here, that was made with other weights."""
    found = rows_of(
        "trainer.algorithm=algorithms/distillation",
        "trainer.reference=models/nano",
        "suite.trouble/env.rewards=[{ id = 'env', weight = 0.0 }]",
        "scheduler.no_signal_steps=1",
    )
    assert len(found) == 2
    assert all(row["reference_k3"] > 0.1 and row["grad_norm"] > 0 for row in found)


def test_a_critic_goes_on_when_a_run_is_resumed(rows_of: Callable[..., Rows]) -> None:
    ppo = ("trainer.algorithm=algorithms/ppo", "trainer.epochs=2", "trainer.old_logp=proximal")
    assert {"explained_variance", "value_loss", "ratio_max"} <= set(rows_of(*ppo)[-1])
    assert [row["step"] for row in rows_of(*ppo, steps=3, resume=True)] == [0, 1, 2]
