"""What can't start leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunix_core.config import load_config
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.run import train

CONFIG = """
run_dir = "{run_dir}"
model_options = {{ random = 1 }}

[[suite]]
env = "math/arithmetic"
{suite}

[trainer]
{trainer}
"""


@pytest.mark.parametrize(
    ("suite", "trainer", "reason"),
    [
        ("", 'optimizer = "adamz"', "adamz"),
        ("options = { levels = [99] }", "", "levels"),
        ("options = { lvels = [1] }", "", "did you mean|Did you mean"),
        ("", "options = { clip = 3 }", "no option 'clip'"),
        ("", 'options = { eps_low = "big" }', "option 'eps_low' is the text 'big'; expected a number"),
        ("", 'options = { dual_clip = 4, kl_weight = "big" }', "option 'kl_weight' is the text 'big'"),
    ],
)
def test_a_mistake_in_the_config_is_told_before_the_run_directory_is_made(
    tmp_path: Path, suite: str, trainer: str, reason: str
) -> None:
    text = CONFIG.format(run_dir=tmp_path / "run", suite=suite, trainer=trainer)
    with pytest.raises(UsageError, match=reason):
        train(load_config(None, text=text), hub=Hub.load())
    assert not (tmp_path / "run").exists()


def test_what_is_found_out_while_the_run_opens_leaves_the_directory_to_the_corrected_one(tmp_path: Path) -> None:
    for python in ("absent/python", str(tmp_path)):  # a directory is none either
        suite = f'isolation = "venv"\npython = "{python}"'
        text = CONFIG.format(run_dir=tmp_path / "run", suite=suite, trainer="")
        with pytest.raises(UsageError, match=f"there is no program '{python}'"):
            train(load_config(None, text=text), hub=Hub.load())
        assert not (tmp_path / "run").exists()
