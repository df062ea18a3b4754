"""`tunix model`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tunix_core.cli.models import model_group
from tunix_core.run import fetching


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNIX_MODELS", str(tmp_path))
    return tmp_path


def test_the_list_tells_what_is_fetched(cache: Path) -> None:
    (cache / "smollm2-135m").mkdir()
    (cache / "owner--name").mkdir()
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(model_group, ["list", "--json"]).output)}
    assert rows["smollm2-135m"]["path"] == str(cache / "smollm2-135m")
    assert rows["gemma3-270m"]["path"] is None
    assert rows["owner/name"]["path"] == str(cache / "owner--name")
    shown = CliRunner().invoke(model_group, ["list"]).output
    assert "Gemma Terms of Use" in shown and "tunix model fetch OWNER/NAME" in shown


@pytest.mark.parametrize(
    ("arguments", "typed", "agreed"), [(["--yes"], "", True), ([], "y\n", True), ([], "n\n", False), ([], "\n", False)]
)
def test_a_licence_is_shown_and_asked_for(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], typed: str, agreed: bool
) -> None:
    answers: list[bool] = []

    def fetch(name: str, agree: fetching.Agree) -> Path:
        answers.append(agree("Be kind."))
        return Path("there") / name

    monkeypatch.setattr(fetching, "fetch_model", fetch)
    result = CliRunner().invoke(model_group, ["fetch", "zoo", *arguments], input=typed)
    assert answers == [agreed]
    assert "Be kind." in result.output and result.output.endswith("there/zoo\n")
    assert ("Do you agree" in result.output) == (not arguments)
