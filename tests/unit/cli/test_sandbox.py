"""`tunix sandbox`: shows what runs hold, and clears what dead ones left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tunix_core.cli.app import app
from tunix_core.sandboxes.owner import Owner


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def tunix(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["sandbox", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_without_any_it_says_none() -> None:
    assert tunix("list") == tunix("cleanup") == "none\n"


def test_orphans_are_shown_and_cleared_and_the_living_left_alone(tmp_path: Path) -> None:
    me = Owner.of_this_process()
    dead = Owner(me.host, me.pid, me.started + 1)
    for owner in (me, dead):
        (tmp_path / f"tunix-sandbox-{owner.file_name}-x").mkdir()
    shown = tunix("list")
    assert "live" in shown and "orphan" in shown and str(dead) in shown
    assert [each["owner"] for each in json.loads(tunix("cleanup", "--json"))] == [str(dead)]
    assert [each["owner"] for each in json.loads(tunix("list", "--json"))] == [str(me)]
