"""`tunix check --gold`: which tasks can be trusted is told by playing the solutions an environment knows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunix_core.cli import main
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.run.checking import check_solutions

PLUGIN = '''
from tunix_core import EnvSpec, Message, Option, Task, hookimpl
from tunix_core.envs import TaskEnvironment

NAMES = ("sound", "hard", "easy", "moody", "broken")
graded = []

class Riddle(TaskEnvironment):
    def _initial_observation(self):
        return "Say yes."

    def _grade(self, answer):
        """"yes" is right, but not in every task."""
        graded.extend([self.task["name"]] * (answer == "yes"))
        if self.task["name"] == "broken":
            raise RuntimeError("it fell over")
        if self.task["name"] == "moody":
            return float(graded.count("moody") % 2) * (answer == "yes")
        return {"hard": 0.5, "easy": 1.0}.get(self.task["name"], float(answer == "yes"))

class Riddles:
    def __init__(self, split, seed, *, names=NAMES):
        self.names = names

    def get(self, index):
        return Task(self.names[index], {"name": self.names[index]})

    def __len__(self):
        return len(self.names)

class Endless(Riddles):
    def __len__(self):
        raise TypeError

def solutions(task):
    return {"gold": [Message.of("assistant", "yes")], "empty": [Message.of("assistant", "")]}

@hookimpl
def tunix_register_envs(register):
    options = {"names": Option(NAMES)}
    register(EnvSpec("known", "riddles:Riddle", "riddles:Riddles", options=options, solutions="riddles:solutions"))
    register(EnvSpec("endless", "riddles:Riddle", "riddles:Endless", solutions="riddles:solutions"))
    register(EnvSpec("unknown", "riddles:Riddle", "riddles:Riddles"))
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "riddles.py"
    file.write_text(PLUGIN)
    yield file
    sys.modules.pop("riddles", None)


def test_a_task_is_sound_when_gold_alone_gets_the_highest_score_in_every_run(plugin: Path) -> None:
    found = check_solutions("riddles/known", hub=Hub.load([plugin]), runs=2)
    problems = {each.task: each.problem for each in found}
    assert problems.pop("moody").startswith("runs of gold don't agree: [")
    assert problems == {
        "sound": "",
        "hard": "gold scores 0.5, and the highest is 1",
        "easy": "empty scores 1, and the highest is 1",
        "broken": "gold got no score: RuntimeError: it fell over (riddles.py:16)",
    }
    assert found[0].scores == {"gold": [1.0, 1.0], "empty": [0.0, 0.0]}
    assert found[4].scores["gold"] == [None, None]


def test_as_many_tasks_as_asked_are_checked(plugin: Path) -> None:
    hub = Hub.load([plugin])
    assert [each.task for each in check_solutions("riddles/endless", hub=hub, n=2)] == ["sound", "hard"]
    with pytest.raises(UsageError, match="endless; say how many"):
        check_solutions("riddles/endless", hub=hub)
    with pytest.raises(UsageError, match="knows no solutions"):
        check_solutions("riddles/unknown", hub=hub)


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_the_command_lists_what_failed_and_writes_its_ids(
    plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "unsound.json"
    code = run(
        "check", "riddles/known", "--gold", "-p", str(plugin), "--out", str(out), "-o", 'names=["sound", "hard"]'
    )
    assert code == 1 and "1 of 2 tasks are sound" in capsys.readouterr().out
    assert json.loads(out.read_text()) == ["hard"]
    assert run("check", "riddles/known", "--gold", "-p", str(plugin), "--json", "-o", 'names=["sound"]') == 0
    assert json.loads(capsys.readouterr().out)[0]["scores"] == {"gold": [1.0], "empty": [0.0]}


def test_without_gold_the_promises_of_every_environment_are_checked(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", "games/frozen-lake", "--n", "1") == 0
    assert "games/frozen-lake: as it should be" in capsys.readouterr().out
    assert run("check", "games/frozen-lake", "--out", "x.json") == 2
    assert run("check", "riddles/known", "-p", str(plugin)) == 1
    assert "riddles/known: a task of eval says another split" in capsys.readouterr().err


def test_the_split_and_seed_that_were_asked_for_are_played(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = plugin.with_name("seen.py")
    told = PLUGIN.replace("self.names = names", "self.names = names; print(split, seed)")
    seen.write_text(told.replace("riddles:", "seen:"))
    assert run("check", "seen/known", "-p", str(seen), "--split", "train", "--seed", "7") == 1
    assert capsys.readouterr().out.splitlines()[0] == "train 7"


def test_what_can_not_be_used_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "games/frozen-lake", "-p", "nowhere.py") == 2
    assert "nowhere.py failed (find): there is no file" in capsys.readouterr().err
    assert run("check", "games/frozen-lake", "-o", "siz=3") == 2
    assert "Did you mean 'size'?" in capsys.readouterr().err


def test_what_works_in_a_sandbox_is_checked_by_its_solutions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "swebench/mini") == 2
    assert "with --gold" in capsys.readouterr().err
