"""What a hub finds, what it says when it does not, and what a run may rely on."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core import EnvSpec, Option, RewardSpec, __version__
from tunix_core.errors import PluginError, UnknownIdError, UsageError
from tunix_core.plugins import Hub, describe_spec, hash_spec

GAMES = """
from tunix_core import EnvSpec, Option, RewardSpec, hookimpl

def names():
    return ["CartPole-v1", "deep/Maze-v0"]

@hookimpl
def tunix_register_envs(register):
    register(EnvSpec("toy/lake", "toy_things:Lake", "toy_things:tasks", "A lake", {"level": Option(1, "how hard")}))
    register(EnvSpec("bridge/*", "toy_things:Bridge", "toy_things:tasks", members="tunix_toy:names"))

@hookimpl
def tunix_register_rewards(register):
    register(RewardSpec("toy/brief", "json:dumps"))
"""
OTHER = """
from tunix_core import EnvSpec, hookimpl

@hookimpl
def tunix_register_envs(register):
    register(EnvSpec("other/lake", "json:loads", "json:dumps"))
"""
Install = Callable[..., Path]


@pytest.fixture
def hub(install: Install) -> Hub:
    install("tunix-toy", GAMES, entries={"toy": "tunix_toy", "bridge": "tunix_toy"})
    return Hub.load()


def test_an_installed_plugin_is_found_by_id_with_its_package(hub: Hub) -> None:
    spec = hub.find("envs", "toy/lake")
    assert (spec.summary, spec.options["level"]) == ("A lake", Option(1, "how hard"))
    record = hub.record_of("envs", "toy/lake")
    assert (record.name, record.version, record.status, record.namespaces) == (
        "tunix-toy",
        "1.0",
        "ok",
        ("toy", "bridge"),
    )


def test_listing_imports_nothing_behind_an_id(hub: Hub) -> None:
    assert [spec.id for spec in hub.list("envs") if spec.id.startswith(("toy", "bridge"))] == ["bridge/*", "toy/lake"]


@pytest.mark.parametrize("name", ["CartPole-v1", "deep/Maze-v0"])
def test_a_family_passes_the_rest_of_the_id_as_name(hub: Hub, name: str) -> None:
    spec = hub.find("envs", f"bridge/{name}")
    assert spec.id == f"bridge/{name}"
    assert spec.options["name"] == Option(name)
    assert spec.target == "toy_things:Bridge"
    assert hub.record_of("envs", f"bridge/{name}").name == "tunix-toy"


def test_a_family_is_no_environment_itself_and_lists_its_members(hub: Hub) -> None:
    with pytest.raises(UnknownIdError, match=r"is a family; write one of its members, as bridge/NAME"):
        hub.find("envs", "bridge/*")
    with pytest.raises(UnknownIdError):
        hub.find("envs", "bridge/")
    assert hub.members("envs", "bridge/*") == ["bridge/CartPole-v1", "bridge/deep/Maze-v0"]


@pytest.mark.parametrize(
    ("kind", "id", "says"),
    [
        ("envs", "toy/lakes", r"tunix-toy 1.0 registers no such id. Did you mean 'toy/lake'\?"),
        ("envs", "lake", "'lake' is not a whole id; write 'toy/lake'"),
        ("envs", "nowhere/x", "no installed package has namespace 'nowhere'. Try: pip install tunix-env-nowhere"),
        ("rewards", "nowhere/x", "Try: pip install tunix-nowhere, .* a file is given with -p FILE"),
        ("envs", "toyy/lake", r"namespace 'toyy'. Did you mean 'toy/lake'\?$"),  # no package that nobody named
        ("rewards", "toy/lake", "'toy/lake' is in envs, not in rewards"),
    ],
)
def test_an_unknown_id_says_what_to_do(hub: Hub, kind: str, id: str, says: str) -> None:
    with pytest.raises(UnknownIdError, match=says):
        hub.find(kind, id)


def test_a_bare_name_works_while_it_is_unique(hub: Hub, install: Install) -> None:
    assert hub.resolve("envs", "lake").id == "toy/lake"
    assert hub.resolve("envs", "toy/lake").id == "toy/lake"
    install("tunix-other", OTHER)
    with pytest.raises(UnknownIdError, match=r"'lake' may be any of other/lake, toy/lake; write the whole id"):
        Hub.load().resolve("envs", "lake")


def test_a_bare_id_of_a_distribution_with_one_namespace_gets_it(hub: Hub, install: Install) -> None:
    code = """
from tunix_core import RewardSpec, hookimpl

def short(episode):
    return 1.0

@hookimpl
def tunix_register_rewards(register):
    register(RewardSpec("short", f"{__name__}:short"))
"""
    install("tunix-one", code, entries={"one": "tunix_one"})
    install("tunix-two", code, entries={"first": "tunix_two", "second": "tunix_two"})
    found = Hub.load()
    assert found.load_object("rewards", "one/short")(None) == 1.0
    with pytest.raises(PluginError, match=r"id 'short' is outside .* name it 'first/...' or 'second/...'"):
        found.find("rewards", "first/short")


def test_an_unknown_kind_is_refused(hub: Hub) -> None:
    with pytest.raises(UsageError, match=r"no kind 'env'. Did you mean 'envs'"):
        hub.find("env", "toy/lake")


def test_load_object_imports_the_target(hub: Hub) -> None:
    assert hub.load_object("rewards", "toy/brief") is json.dumps


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import flax_of_another_name", r"Try: pip install flax_of_another_name"),
        (
            "raise ModuleNotFoundError('no jax', name='jax')",
            r"Try: pip install 'tunix-core\[train\]'",
        ),
        ("1 / 0", r"tunix-toy 1.0 can't be imported: ZeroDivisionError: division by zero \(at .*toy_things.py:1\)"),
        ("", r"AttributeError: module 'toy_things' has no attribute 'Lake'"),
    ],
)
def test_a_target_that_fails_to_import_names_its_plugin_and_the_remedy(
    hub: Hub, install: Install, tmp_path: Path, code: str, says: str
) -> None:
    (tmp_path / "site" / "toy_things.py").write_text(code)
    importlib.invalidate_caches()
    with pytest.raises(PluginError, match=says):
        hub.load_object("envs", "toy/lake")


def test_a_target_whose_module_is_missing_is_the_plugins_fault(hub: Hub) -> None:
    with pytest.raises(PluginError, match=r"names a module that is not there; it is a fault of tunix-toy 1.0"):
        hub.load_object("envs", "toy/lake", "tasks")


@pytest.mark.parametrize(
    ("required", "says"),
    [
        (
            "tunix-toy>=2,<3",
            r"toy 1.0 is installed, and tunix-toy>=2,<3 is required. Try: pip install 'tunix-toy>=2,<3'",
        ),
        ("tunix-absent>=1", r"tunix-absent is required .* and not installed. Try: pip install 'tunix-absent>=1'"),
        ("not a requirement", "is not a requirement such as"),
    ],
)
def test_a_requirement_that_is_not_met_names_what_was_found_and_wanted(hub: Hub, required: str, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        Hub.load(required=[required])


def test_requirements_that_are_met_pass(hub: Hub) -> None:
    Hub.load(required=["tunix-toy>=1,<2", "Tunix_Toy"], strict=False)


def test_required_and_broken_is_an_error(install: Install) -> None:
    install("tunix-sad", "raise RuntimeError('no')")
    Hub.load()
    with pytest.raises(PluginError, match=r"required, and tunix-sad 1.0 failed \(import\): RuntimeError: no"):
        Hub.load(required=["tunix-sad"])
    with pytest.raises(PluginError, match=r"RuntimeError: no"):
        Hub.load(strict=True)


@pytest.mark.parametrize("name", ["tunix-toy", "toy", "Tunix_Toy"])
def test_a_disabled_plugin_is_not_imported_and_the_error_says_so(
    install: Install, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install("tunix-toy", f"open({str(tmp_path / 'imported')!r}, 'w')\n{GAMES}")
    monkeypatch.setenv("TUNIX_DISABLE_PLUGINS", f"something, {name}")
    hub = Hub.load()
    assert not (tmp_path / "imported").exists()
    with pytest.raises(PluginError, match=r"'toy/lake' can't be used, since tunix-toy 1.0 is blocked: it was disabled"):
        hub.find("envs", "toy/lake")


def test_two_owners_of_a_namespace_are_both_left_out_until_one_is_disabled(install: Install) -> None:
    install("tunix-toy", GAMES.replace("bridge/", "toy/bridge/"), entries={"toy": "tunix_toy"})
    install("tunix-copycat", "raise AssertionError('never imported')", entries={"toy": "tunix_copycat"})
    with pytest.raises(PluginError, match=r"belongs to both tunix-copycat 1.0 and tunix-toy 1.0") as caught:
        Hub.load().find("envs", "toy/lake")
    assert "AssertionError" not in str(caught.value)
    assert Hub.load(disabled=["tunix-copycat"]).find("envs", "toy/lake").summary == "A lake"


@pytest.mark.parametrize(
    ("requires", "status"),
    [
        (f"tunix-core>={__version__}", "ok"),
        ("tunix-core>=99", "incompatible"),
        ("tunix_core[train]<0.0.1", "incompatible"),
        ("tunix-core>=99; extra == 'later'", "ok"),
        ("this is !! no requirement", "failed"),
    ],
)
def test_the_version_of_the_core_is_the_distributions_own_requirement(
    install: Install, requires: str, status: str
) -> None:
    install("tunix-toy", GAMES, entries={"toy": "tunix_toy", "bridge": "tunix_toy"}, requires=requires)
    (record,) = [r for r in Hub.load().records if r.name == "tunix-toy"]
    assert record.status == status


def test_unreadable_metadata_hides_no_other_plugin(hub: Hub, install: Install, tmp_path: Path) -> None:
    broken = install("tunix-garbled", "").parent / "tunix_garbled-1.0.dist-info" / "entry_points.txt"
    broken.write_text("[tunix]\nno equals sign\n")
    hub = Hub.load()
    assert hub.find("envs", "toy/lake").summary == "A lake"
    (record,) = [r for r in hub.records if r.status == "failed"]
    assert record.phase == "find" and "metadata can't be read" in record.error


def test_the_lock_names_every_usable_plugin(hub: Hub, install: Install, tmp_path: Path) -> None:
    install("tunix-sad", "raise RuntimeError('no')")
    file = tmp_path / "mine.py"
    file.write_text(OTHER.replace("other/lake", "lake"))
    lock = Hub.load([file]).lock()
    assert lock["tunix-core"] == __version__
    assert lock["tunix-toy"] == "1.0"
    assert lock["file:mine"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert "tunix-sad" not in lock


def test_the_content_hash_follows_the_content() -> None:
    spec = EnvSpec("a/b", "m:C", "m:t", options={"x": Option(1), "y": Option((1, 2))})
    again = EnvSpec("a/b", "m:C", "m:t", options={"y": Option([1, 2]), "x": Option(1)})
    assert hash_spec(spec) == hash_spec(again)
    assert hash_spec(RewardSpec("a/b", "m:C")) != hash_spec(RewardSpec("a/b", "m:D"))


@given(st.sampled_from([("chance_score", 0.5), ("max_turns", 2), ("isolation", "process"), ("requires", ("docker",))]))
def test_every_field_changes_the_hash(change: tuple[str, object]) -> None:
    spec = EnvSpec("a/b", "m:C", "m:t")
    assert hash_spec(replace(spec, **{change[0]: change[1]})) != hash_spec(spec)
    json.dumps(describe_spec(spec))
