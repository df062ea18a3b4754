"""What a plugin may register, and what becomes of one that does it wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tunix_core.errors import PluginError
from tunix_core.plugins import Hub, PluginRecord
from tunix_core.plugins.loader import ID

HEAD = "from tunix_core import EnvSpec, Option, RewardSpec, ToolSpec, hookimpl\n"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(code: str) -> Path:
        path = tmp_path / "my_rewards.py"
        path.write_text(HEAD + code)
        return path

    return to_file


def load_file(path: Path) -> tuple[Hub, PluginRecord]:
    hub = Hub.load([path])
    return hub, hub.records[-1]


def rewards(*specs: str) -> str:
    body = "".join(f"    register({spec})\n" for spec in specs)
    return f"@hookimpl\ndef tunix_register_rewards(register):\n{body}"


def test_a_bare_id_of_a_file_gets_its_stem_and_its_target_is_that_very_file(write: Write) -> None:
    code = "def mine(episode): return 1.0\n" + rewards(
        "RewardSpec('mine', 'my_rewards:mine')", "RewardSpec('my_rewards/b', 'json:dumps')"
    )
    hub, record = load_file(write(code))
    assert (record.status, record.is_file, record.namespaces) == ("ok", True, ("my_rewards",))
    assert [s.id for s in hub.list("rewards") if s.id.startswith("my_")] == ["my_rewards/b", "my_rewards/mine"]
    assert hub.load_object("rewards", "my_rewards/mine")(None) == 1.0


def test_a_changed_file_is_loaded_anew(write: Write, tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        hub, _ = load_file(
            write(f"def mine(episode): return {value}\n" + rewards("RewardSpec('mine', 'my_rewards:mine')"))
        )
        assert hub.load_object("rewards", "my_rewards/mine")(None) == value


def test_the_folder_of_a_file_comes_last_on_the_path(write: Write, tmp_path: Path) -> None:
    load_file(write(rewards("RewardSpec('mine', 'my_rewards:mine')")))
    assert sys.path[-1] == str(tmp_path)


def test_a_file_named_like_a_module_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text(HEAD + rewards("RewardSpec('mine', 'json:mine')"))
    _, record = load_file(path)
    assert (record.status, record.phase) == ("failed", "import")
    assert "the name 'json' belongs to the module" in record.error and "rename the file" in record.error


@pytest.mark.parametrize("name", ["absent.py", "notes.txt", "a.b.py"])
def test_a_file_that_is_no_plugin_file_is_recorded(tmp_path: Path, name: str) -> None:
    if name != "absent.py":
        (tmp_path / name).write_text("")
    hub, record = load_file(tmp_path / name)
    assert (record.status, record.phase) == ("failed", "find")
    with pytest.raises(PluginError, match=r"there is no file|a plugin file is named NAME.py"):
        hub.check_files()


def test_two_files_of_one_stem_are_both_left_out(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "twin.py" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(HEAD + rewards("RewardSpec('mine', 'twin:mine')"))
    hub = Hub.load(paths)
    assert [r.phase for r in hub.records[-2:]] == ["namespace"] * 2
    assert all(str(path) in hub.records[-1].error for path in paths)


@pytest.mark.parametrize(
    ("code", "phase", "says"),
    [
        ("def f(): pass", "validate", "no hook is implemented here; decorate a function with @hookimpl"),
        ("def tunix_step(): pass", "validate", "tunix_step is not decorated; write @hookimpl above it"),
        ("@hookimpl\ndef tunix_steps(ctx): pass", "validate", "unknown hook 'tunix_steps'. Did you mean 'tunix_step'"),
        ("@hookimpl\ndef tunix_step(ctx, reward): pass", "validate", "'reward'"),
        ("@hookimpl\nasync def tunix_step(ctx): pass", "validate", "this one is async"),
        ("@hookimpl(wrapper=True)\ndef tunix_step(ctx): yield", "validate", "hook wrappers are not supported"),
        ("import nothing_of_this_name", "import", "ModuleNotFoundError: No module named 'nothing_of_this_name' (at"),
        ("raise SystemExit(3)", "import", "SystemExit: 3 (at"),
        ("class Panic(BaseException): ...\nraise Panic('as in Rust')", "import", "Panic: as in Rust (at"),
        ("def f(:", "import", "SyntaxError"),
        ("@hookimpl\ndef tunix_register_rewards(register): 1 / 0", "register", "ZeroDivisionError"),
        (rewards("RewardSpec('x', 'm:a')", "RewardSpec('my_rewards/x', 'm:b')"), "register", "is registered twice"),
        (rewards("RewardSpec('games/x', 'm:a')"), "register", "name it 'my_rewards/...'"),
        (rewards("RewardSpec('my_rewards/', 'm:a')"), "register", "must be 'namespace/name'"),
        (rewards("RewardSpec('a b', 'm:a')"), "register", "must be 'namespace/name'"),
        (rewards("RewardSpec('x', 'm.a')"), "register", "target must look like 'module:attr', and is 'm.a'"),
        (rewards("RewardSpec('x', 'm:a', options={'o': Option(object())})"), "register", "must survive JSON"),
        (rewards("EnvSpec('x', 'm:a', 'm:t')"), "register", "takes RewardSpec(...), and was given EnvSpec"),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_recorded_and_left_out_whole(write: Write, code: str, phase: str, says: str) -> None:
    whole = (
        rewards("RewardSpec('good', 'm:a')")
        .replace("tunix_register_rewards", "tunix_register_tools")
        .replace("Reward", "Tool")
    )
    hub, record = load_file(write(f"from tunix_core import ToolSpec\n{whole if phase == 'register' else ''}\n{code}"))
    assert (record.status, record.phase) == ("failed", phase)
    assert says in record.error and "\n" not in record.error
    assert not [spec for spec in (*hub.list("tools"), *hub.list("rewards")) if spec.id.startswith("my_rewards/")]
    with pytest.raises(PluginError, match=r"my_rewards"):
        hub.check_files()


def test_a_failed_import_leaves_no_module_behind(write: Write) -> None:
    load_file(write("1 / 0"))
    assert "my_rewards" not in sys.modules


@pytest.mark.parametrize("id", ["a/b", "a/b/c", "gym/*", "a/b/*", "a_b/C-v1"])
def test_ids_that_may_be_registered(id: str) -> None:
    assert ID.fullmatch(id)


@pytest.mark.parametrize("id", ["a", "a/", "/b", "a/b c", "a/b*", "*/b", "a/*/b", "a/**"])
def test_ids_that_may_not(id: str) -> None:
    assert not ID.fullmatch(id)
