"""What the README and the pages say is so: configs load, code runs, commands and files exist."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunix_core.cli import main
from tunix_core.config import EngineConfig, load_config
from tunix_core.plugins import Hub
from tunix_core.run import evaluate
from tunix_core.run.build import algorithms, prepare

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*/*/README.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ID = re.compile(r"`((?:algorithms|games|gym|math|models|rewards|swebench|tools)/[a-zA-Z][\w-]*)`")
SCORED = ("eval", "math/arithmetic", "--n", "4", "--reward", "my_rewards/short", "-p", "./my_rewards.py")
INLINE = re.compile(r"`((?:tunix|make) [^`]+)`")


def blocks(page: Path, language: str) -> list[str]:
    return [text for word, text in FENCE.findall(page.read_text()) if word == language]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


CONFIGS = [
    pytest.param(page, text, id=f"{name(page)}-{number}")
    for page in PAGES
    for number, text in enumerate(blocks(page, "toml"))
    if "[[suite]]" in text
]
COMMANDS = sorted(
    {
        line.partition("#")[0].strip()
        for page in PAGES
        for text in blocks(page, "")
        for line in text.splitlines()
        if line.startswith(("tunix ", "make "))
    }
    | {command for page in PAGES for command in INLINE.findall(page.read_text())}
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Path]]:
    """`folder(page)` writes the page's Python files as its reader would, and gives where they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(page: Path) -> Path:
        for text in blocks(page, "python"):
            if named := re.match(r"# (\w+\.py)\n", text):
                (tmp_path / named[1]).write_text(text)
        return tmp_path

    yield write
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


def test_there_is_something_to_check() -> None:
    assert len(CONFIGS) >= 6
    assert {"make quickstart", "make test", "tunix hub list envs", "tunix train my_run.toml"} <= set(COMMANDS)
    assert ("docs/environments.md" in LINK.findall(README.read_text())) and "games/frozen-lake" in README.read_text()


@pytest.mark.parametrize(("page", "text"), CONFIGS)
def test_a_config_loads_and_what_it_names_is_there(folder: Callable[[Path], Path], page: Path, text: str) -> None:
    (folder(page) / "run.toml").write_text(text)
    config = load_config("run.toml")
    hub = Hub.load(config.plugins.files)
    assert [prepare(suite, hub).config for suite in config.suites] == list(config.suites)
    assert set(algorithms(config, hub)) == {suite.name for suite in config.suites}
    assert hub.find("models", config.model)
    for suite in config.suites:
        for part in suite.rewards:
            accepted = hub.find("rewards", part.id).options if part.id != "env" else {}
            assert set(part.options) <= set(accepted)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_toml_block_is_toml(page: Path) -> None:
    assert all(tomllib.loads(text) for text in blocks(page, "toml"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(re.sub(r"[\[\]]", "", command))
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words if "=" not in word} <= set(targets)
        return
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])  # unknown commands and options are refused all the same
    assert ended.value.code == 0, capfd.readouterr().err


@pytest.mark.parametrize("command", ["tunix fly", "tunix eval x --spead 3"])
def test_a_command_that_does_not_exist_would_be_found(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split()[1:], "--help"])
    assert ended.value.code == 2


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_link_leads_to_a_file(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_an_id_is_installed(page: Path) -> None:
    hub = Hub.load()
    known = {spec.id for kind in ("envs", "tools", "rewards", "algorithms", "models") for spec in hub.list(kind)}
    named = [id for id in ID.findall(page.read_text()) if id not in known and id != "gym/NAME"]
    import gymnasium

    assert [id for id in named if id.removeprefix("gym/") not in gymnasium.registry] == []


def test_the_tree_of_the_readme_is_the_tree() -> None:
    (tree,) = [text for text in blocks(README, "") if text.startswith("tunix_core/\n")]
    lines = [(line[0] == " ", re.findall(r"[\w.]+(?:/|\.py)(?=\s|$)", line)) for line in tree.splitlines()]
    paths = [("tunix_core/" if inside else "") + each for inside, names in lines for each in names]
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).exists() or not any(_files(ROOT / path))] == []
    rooms = {f"tunix_core/{path.name}/" for path in (ROOT / "tunix_core").iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(paths)


def _files(path: Path) -> Iterator[Path]:
    return path.rglob("*") if path.is_dir() else iter([path])


def test_the_environment_of_the_page_is_played_by_its_id(folder: Callable[[Path], Path]) -> None:
    page = ROOT / "docs/environments.md"
    (folder(page) / "guessing.py").write_text("\n".join(blocks(page, "python")))
    engine = EngineConfig(slots=8, max_context=256)
    how = {"n": 3, "options": {"highest": 9}, "max_tokens": 6, "engine": engine}
    found = evaluate("guessing/number", hub=Hub.load(["guessing.py"]), **how)
    assert (found["n"], found["none"], found["failures"]) == (3, 0, {})
    assert 1 <= found["turns"] <= 6


def test_the_readers_own_reward_scores_by_its_name(
    folder: Callable[[Path], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks(README, "python")
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) < 15
    assert [path.name for path in folder(README).glob("*.py")] == ["my_rewards.py"]
    with pytest.raises(SystemExit) as ended:
        main([*SCORED, "--json"])
    out, err = capfd.readouterr()
    assert ended.value.code == 0, err
    found = json.loads(out)
    assert (found["n"], found["none"]) == (4, 0)
    assert found["parts"].keys() == {"my_rewards/short"} and 0 < found["mean"] <= 1
