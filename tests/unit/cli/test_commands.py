"""The commands parse, call `run`, print, and end with the right code."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunix_core import run
from tunix_core.cli import main
from tunix_core.config import EngineConfig, RewardConfig, RunConfig, SandboxConfig
from tunix_core.errors import CheckpointError, EngineError, NoSignal

PLUGIN = """
from tunix_core import EnvSpec, Option, RewardSpec, Timeouts, hookimpl

def names():
    return ["one", "two"]

@hookimpl
def tunix_register_envs(register):
    register(EnvSpec("pond", "my_things:Pond", "my_things:tasks", "A pond",
                     {"level": Option(1, "how deep"), "mode": Option("fast", "how it moves")},
                     score_range=(-1.0, 1.0), chance_score=0.25, max_turns=7, isolation="process"))
    register(EnvSpec("my_things/many/*", "my_things:Many", "my_things:tasks", members="my_things:names",
                     score_range=(0.0, float("inf"))))

@hookimpl
def tunix_register_rewards(register):
    register(RewardSpec("brief", "my_things:brief", "Short is good"))
    register(RewardSpec("pond", "my_things:pond"))
"""
COMMANDS = """
import click
from tunix_core import hookimpl

@click.command()
def wave():
    click.echo("hello")

@hookimpl
def tunix_register_commands(cli):
    cli.add_command(wave)
"""
Tunix = Callable[..., SimpleNamespace]


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test imports from its own folder, or puts on the path, is gone after it."""
    monkeypatch.delenv("TUNIX_DEBUG", raising=False)
    monkeypatch.delenv("TUNIX_DISABLE_PLUGINS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    level = logging.getLogger("tunix_core").level
    yield
    logging.getLogger("tunix_core").setLevel(level)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def tunix(capfd: pytest.CaptureFixture[str]) -> Tunix:
    """tunix("hub", "list") -> code, out, err."""

    def call(*arguments: str) -> SimpleNamespace:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capfd.readouterr()
        return SimpleNamespace(code=caught.value.code, out=out, err=err)

    return call


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "my_things.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text('[[suite]]\nenv = "my_things/pond"\n')
    return str(path)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `run.train` was called with."""
    calls: list[dict[str, Any]] = []

    def train(config: RunConfig, **how: Any) -> SimpleNamespace:
        calls.append({"config": config, **how})
        return SimpleNamespace(summary={}, exit_code=130 if how["resume"] else 0)

    monkeypatch.setattr(run, "train", train)
    return calls


# ---- hub ----
def test_a_model_that_is_nothing_says_where_models_come_from(tunix: Tunix) -> None:
    told = tunix("eval", "math/arithmetic", "--model", "smolm2")
    assert told.code == 2 and told.err.count("\n") == 1
    assert "Did you mean 'smollm2-135m'?" in told.err and "`tunix model list` shows what can be fetched" in told.err


def test_hub_list_shows_every_kind(tunix: Tunix, plugin: str) -> None:
    listed = json.loads(tunix("hub", "list", "-p", plugin, "--json").out)
    mine = [(row["kind"], row["id"], row["summary"]) for row in listed if row["package"] == "my_things"]
    assert mine == [
        ("envs", "my_things/many/*", ""),
        ("envs", "my_things/pond", "A pond"),
        ("rewards", "my_things/brief", "Short is good"),
        ("rewards", "my_things/pond", ""),
    ]
    assert "my_things/pond" in tunix("hub", "list", "envs", "-p", plugin).out
    assert "my_things/brief" not in tunix("hub", "list", "envs", "-p", plugin).out


@pytest.mark.parametrize("before", [True, False])
def test_the_plugin_option_stands_before_or_after_the_command(tunix: Tunix, plugin: str, before: bool) -> None:
    command = ["hub", "list", "rewards"]
    result = tunix(*(["-p", plugin, *command] if before else [*command, "-p", plugin]))
    assert "my_things/brief" in result.out


def test_hub_show_explains_an_environment(tunix: Tunix, plugin: str) -> None:
    shown = json.loads(tunix("hub", "show", "my_things/many/one", "-p", plugin, "--json").out)
    assert shown["options"]["name"] == {"default": "one", "help": ""}
    out = tunix("hub", "show", "my_things/pond", "-p", plugin).out
    for word in ("A pond", "level", "how deep", "-1, 1", "0.25", "process", "max turns", "my_things/pond"):
        assert word in out


def test_hub_show_finds_a_bare_name_in_every_kind_and_lists_members(tunix: Tunix, plugin: str) -> None:
    assert json.loads(tunix("hub", "show", "brief", "-p", plugin, "--json").out)["id"] == "my_things/brief"
    both = json.loads(tunix("hub", "show", "my_things/pond", "-p", plugin, "--json").out)
    assert [row["kind"] for row in both] == ["envs", "rewards"]
    family = json.loads(tunix("hub", "show", "my_things/many/*", "-p", plugin, "--json").out)
    assert family["score_range"] == [0.0, None]
    assert family["members"] == ["my_things/many/one", "my_things/many/two"]
    assert "members" not in tunix("hub", "show", "my_things/many/one", "-p", plugin).out


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("my_things/brif", "rewards has no 'my_things/brif'; file"),
        ("my_things/brif", "Did you mean 'my_things/brief'"),
        ("rief", "Did you mean 'brief'"),
        ("absent/x", "no installed package has namespace 'absent'. Try: pip install tunix-env-absent"),
    ],
)
def test_hub_show_of_an_unknown_id_says_what_to_do(tunix: Tunix, plugin: str, id: str, says: str) -> None:
    result = tunix("hub", "show", id, "-p", plugin)
    assert (result.code, result.out) == (2, "")
    assert says in result.err and result.err.count("\n") == 1


def test_plugins_tells_the_state_of_each(tunix: Tunix, plugin: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    result = tunix("plugins", "--json", "-p", plugin, "-p", str(tmp_path / "broken.py"))
    mine = {row["name"]: row for row in json.loads(result.out)}
    assert (mine["my_things"]["status"], mine["broken"]["status"]) == ("ok", "failed")
    assert mine["my_things"]["import_ms"] > 0
    assert "import: ModuleNotFoundError" in tunix("plugins", "-p", str(tmp_path / "broken.py")).out
    assert result.code == 0


def test_listing_loads_no_accelerator() -> None:
    code = (
        "import sys; from tunix_core.cli import main\n"
        "for words in (['plugins'], ['hub', 'list']):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert end.code == 0, end.code\n"
        "assert not {'jax', 'flax', 'tunix_core.engine', 'gymnasium'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


# ---- train ----
def test_train_merges_the_config_and_the_command_line(
    tunix: Tunix, plugin: str, config: str, trained: list[dict[str, Any]]
) -> None:
    result = tunix("-p", "no:other", "train", config, "-o", "seed=4", "-o", "steps=2", "-p", plugin, "--overwrite")
    assert result.code == 0, result.err
    (call,) = trained
    assert (call["config"].seed, call["config"].steps) == (4, 2)
    assert (call["config"].plugins.files, call["config"].plugins.disabled) == ((plugin,), ("other",))
    assert call["hub"].find("envs", "my_things/pond").max_turns == 7
    assert (call["resume"], call["overwrite"], call["config_name"]) == (False, True, "small")


def test_train_ends_with_the_code_of_the_run(tunix: Tunix, config: str, trained: list[dict[str, Any]]) -> None:
    assert tunix("train", config, "--resume").code == 130
    assert tunix("train", config, "--resume", "--overwrite").code == 2


def test_train_refuses_a_broken_file_it_was_given(
    tunix: Tunix, config: str, trained: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    result = tunix("train", config, "-p", str(tmp_path / "broken.py"))
    assert result.code == 2 and "ZeroDivisionError" in result.err and not trained


def test_a_mistake_in_the_config_is_one_line_with_its_place(tunix: Tunix, config: str) -> None:
    Path(config).write_text('[[suite]]\nenv = "a/b"\nwieght = 2\n')
    result = tunix("train", config)
    assert result.code == 2
    assert result.err == f"error: {config}:3: unknown key 'wieght' in suite[0]. Did you mean 'weight'?\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [(CheckpointError("old"), 2), (NoSignal("flat"), 3), (EngineError("gone"), 1), (KeyboardInterrupt(), 130)],
)
def test_errors_have_exit_codes_and_no_traceback(
    tunix: Tunix, config: str, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def train(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(run, "train", train)
    result = tunix("train", config)
    assert result.code == code
    assert "Traceback" not in result.err
    assert result.err.strip() == (f"error: {error}" if code != 130 else "interrupted")


def test_debug_shows_the_traceback(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNIX_DEBUG", "1")
    with pytest.raises(CheckpointError):
        monkeypatch.setattr(run, "train", lambda *_, **__: (_ for _ in ()).throw(CheckpointError("old")))
        main(["train", config])


# ---- eval and export ----
def test_eval_resolves_names_and_passes_options(tunix: Tunix, plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def evaluate(env: str, **how: Any) -> dict[str, Any]:
        calls.append((env, how))
        return {"env": env, "mean": 0.5, "stderr": None, "parts": {"env": 0.25}}

    monkeypatch.setattr(run, "evaluate", evaluate)
    arguments = ("eval", "pond", "-p", plugin, "-o", "level=2", "-o", "mode=slow", "--n", "5", "--reward", "brief")
    more = ("--seed", "3", "--temperature", "0.5", "--model", "runs/x@3", "--max-context", "2048", "--json")
    shown = tunix(*arguments, *more)
    assert json.loads(shown.out)["mean"] == 0.5
    ((env, how),) = calls
    assert env == "my_things/pond"
    how.pop("hub")
    assert how == {
        "options": {"level": 2, "mode": "slow"},
        "rewards": [RewardConfig("my_things/brief")],
        "model": "runs/x@3",
        "n": 5,
        "seed": 3,
        "temperature": 0.5,
        "split": "eval",
        "max_tokens": 64,
        "engine": EngineConfig(max_context=2048),
        "sandbox": SandboxConfig(),
    }
    done = tunix(*arguments)
    assert done.code == 0 and "parts env" in done.out and "0.25" in done.out and "–" in done.out


def test_eval_without_any_score_is_no_success(tunix: Tunix, plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"mean": None, "failures": {"env_raised": 5}, "examples": {"env_raised": "x at env.reset: the lake is dry"}}
    monkeypatch.setattr(run, "evaluate", lambda *_, **__: found)
    for more in ((), ("--json",)):
        done = tunix("eval", "pond", "-p", plugin, *more)
        assert done.code == 1 and "the lake is dry" in done.out


@pytest.mark.parametrize(("given", "passed"), [("nan", "nan"), ("3", "3"), ('"slow"', "slow"), ("true", "true")])
def test_an_option_that_is_a_text_stays_one(
    tunix: Tunix, plugin: str, monkeypatch: pytest.MonkeyPatch, given: str, passed: str
) -> None:
    options: list[dict[str, Any]] = []
    monkeypatch.setattr(run, "evaluate", lambda *_, **how: options.append(how["options"]) or {"mean": 0.5})
    assert tunix("eval", "pond", "-p", plugin, "-o", f"mode={given}", "-o", "level=nan").code == 0
    assert options[0]["mode"] == passed and math.isnan(options[0]["level"])


@pytest.mark.parametrize("option", ["level", "=2"])
def test_eval_refuses_an_option_without_a_value(tunix: Tunix, plugin: str, option: str) -> None:
    result = tunix("eval", "pond", "-p", plugin, "-o", option)
    assert result.code == 2 and "expected KEY=VALUE" in result.err


def test_export_prints_where_it_wrote(tunix: Tunix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "export", lambda source, target, *, hub: Path(target) / source)
    assert tunix("export", "runs", "out").out == "out/runs\n"


# ---- commands of plugins ----
def test_a_plugin_adds_a_command(tunix: Tunix, tmp_path: Path) -> None:
    (tmp_path / "waving.py").write_text(COMMANDS)
    plugin = str(tmp_path / "waving.py")
    assert tunix("-p", plugin, "wave").out == "hello\n"
    assert "wave" in tunix("-p", plugin, "--help").out
    assert tunix("wave").code == 2


@pytest.mark.parametrize("change", [("wave():", "train():"), ("cli.add_command(wave)", "1 / 0")])
def test_a_plugin_whose_commands_are_broken_leaves_ours_alone(
    tunix: Tunix, tmp_path: Path, change: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "waving.py").write_text(COMMANDS.replace(*change).replace("(wave)", "(train)"))
    result = tunix("-p", str(tmp_path / "waving.py"), "--help")
    assert result.code == 0 and "Trains as the file CONFIG says." in result.out
    assert "plugin waving: tunix_register_commands failed" in caplog.text
