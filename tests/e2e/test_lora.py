"""A run that trains adapters: opened and exported, it is the model with them merged; resumed, it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunix_core.models.paths import flatten
from tunix_core.plugins import Hub
from tunix_core.run import export
from tunix_core.run.policies import open_model

LORA = '[trainer.lora]\nrank = 2\nalpha = 8.0\ntargets = ["attention"]\n'


@pytest.mark.slow
@pytest.mark.parametrize(("base", "changed"), [("model", {"attention"}), ("nf4", {"attention", "mlp"})])
def test_a_run_of_adapters_is_opened_exported_and_resumed(
    base: str, changed: set[str], launch: Callable[..., Any], tmp_path: Path
) -> None:
    """Of a base in four bits, what the bits stand for is opened and exported, in all matrices of the layers."""
    hub, lora = Hub.load(), f'{LORA}base = "{base}"\n'
    run = launch(rest=lora).run_dir
    before = dict(flatten(open_model("models/nano", hub, {"random": 1}).params))
    opened = open_model(str(run), hub)
    weights = dict(flatten(opened.params))
    moved = {path for path, weight in weights.items() if np.any(np.asarray(weight) != np.asarray(before[path]))}
    assert moved == {path for path in before if set(path.split(".")[-2:-1]) & changed}

    written = open_model(str(export(str(run), str(tmp_path / "out"), hub=hub)), hub)
    for path, weight in flatten(written.params):
        np.testing.assert_array_equal(weight, weights[path])

    launch(rest=lora, steps=3, resume=True)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2]
