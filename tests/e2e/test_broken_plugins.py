"""Really installed packages, broken in every way: each is told apart, and the rest goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

HOOK = "from tunix_core import EnvSpec, hookimpl\n\n@hookimpl\ndef tunix_register_envs(register):\n"
GOOD = HOOK + "    register(EnvSpec('{namespace}/x', 'json:loads', 'json:dumps', 'A toy'))\n"
BROKEN = {
    "tunix-env-absentee": ("import a_module_nobody_has\n", ""),
    "tunix-env-misnomer": (HOOK.replace("register_envs", "register_env") + "    pass\n", ""),
    "tunix-env-signature": (HOOK.replace("(register)", "(add)") + "    pass\n", ""),
    "tunix-env-raiser": (GOOD + "    raise RuntimeError('half way')\n", ""),
    "tunix-env-trespasser": (GOOD.replace("{namespace}", "elsewhere"), ""),
    "tunix-env-futurist": ("raise AssertionError('imported')\n", "tunix-core>=99"),
    "tunix-env-quitter": ("import sys\nsys.exit(0)\n", ""),
}
EXPECTED = {
    "tunix-env-absentee": ("failed", "import", "ModuleNotFoundError: No module named 'a_module_nobody_has'"),
    "tunix-env-misnomer": (
        "failed",
        "validate",
        "unknown hook 'tunix_register_env'. Did you mean",
    ),
    "tunix-env-signature": ("failed", "validate", "{'add'}"),
    "tunix-env-raiser": ("failed", "register", "RuntimeError: half way"),
    "tunix-env-trespasser": ("failed", "register", "id 'elsewhere/x' is outside this plugin's namespaces"),
    "tunix-env-futurist": ("incompatible", "version", "it needs tunix-core>=99"),
    "tunix-env-quitter": ("failed", "import", "SystemExit: 0"),
    "tunix-env-twin": ("failed", "namespace", "belongs to both tunix-env-twin 1.0 and tunix-env-usurper 1.0"),
    "tunix-env-usurper": ("failed", "namespace", "belongs to both tunix-env-twin 1.0 and tunix-env-usurper 1.0"),
    "tunix-env-healthy": ("ok", "", ""),
}


def write_distribution(site: Path, name: str, code: str, requires: str = "", namespace: str = "") -> None:
    """What an installer leaves: a module, and its metadata."""
    module, namespace = name.replace("-", "_"), namespace or name.removeprefix("tunix-env-")
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    wants = f"Requires-Dist: {requires}\n" if requires else ""
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{wants}")
    (info / "entry_points.txt").write_text(f"[tunix]\n{namespace} = {module}\n")
    (site / f"{module}.py").write_text(code.replace("{namespace}", namespace))


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TUNIX_")} | {"PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=site)


def tunix(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(site, "-m", "tunix_core.cli", *arguments)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every broken distribution at once, and a healthy one among them."""
    site = tmp_path_factory.mktemp("site")
    for name, (code, requires) in BROKEN.items():
        write_distribution(site, name, code, requires)
    write_distribution(site, "tunix-env-healthy", f"print('chatter')\n{GOOD}")
    write_distribution(site, "tunix-env-twin", GOOD)
    write_distribution(site, "tunix-env-usurper", GOOD, namespace="twin")
    return site


@pytest.fixture(scope="module")
def records(site: Path) -> dict[str, dict[str, Any]]:
    listed = tunix(site, "plugins", "--json")
    assert listed.returncode == 0, listed.stderr
    return {row["name"]: row for row in json.loads(listed.stdout)}


@pytest.mark.parametrize("name", EXPECTED)
def test_plugins_tells_what_is_wrong_with_each(records: dict[str, dict[str, Any]], name: str) -> None:
    status, phase, says = EXPECTED[name]
    record = records[name]
    assert (record["status"], record["phase"], record["version"]) == (status, phase, "1.0")
    assert says in record["error"]


def test_the_hub_lists_the_healthy_and_names_the_others(site: Path) -> None:
    listed = tunix(site, "hub", "list", "envs")
    assert listed.returncode == 0
    assert "healthy/x" in listed.stdout and "raiser/x" not in listed.stdout and "twin/x" not in listed.stdout
    for name in EXPECTED.keys() - {"tunix-env-healthy"}:
        assert name in listed.stderr


def test_the_table_of_plugins_shows_every_one(site: Path) -> None:
    table = tunix(site, "plugins")
    assert table.returncode == 0
    assert all(name in table.stdout for name in EXPECTED)


RUN = """
import sys
from types import SimpleNamespace
from tunix_core import run
from tunix_core.cli import main

def find_only(config, *, hub, **how):
    print([hub.find("envs", suite.env).summary for suite in config.suites])
    return SimpleNamespace(exit_code=0)

run.train = find_only
main()
"""


def test_a_run_that_names_none_of_them_goes_on(site: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[[suite]]\nenv = "healthy/x"\n')
    done = python(site, "-c", RUN, "train", str(tmp_path / "run.toml"))
    assert (done.returncode, done.stdout) == (0, "['A toy']\n"), done.stderr
    strict = python(site, "-c", RUN, "train", str(tmp_path / "run.toml"), "--strict-plugins")
    assert strict.returncode == 2 and "half way" in strict.stderr


@pytest.mark.parametrize("name", ["tunix-env-raiser", "tunix-env-twin", "tunix-env-futurist"])
def test_a_run_that_names_one_of_them_ends_with_its_error(site: Path, tmp_path: Path, name: str) -> None:
    id = f"{name.removeprefix('tunix-env-')}/x"
    (tmp_path / "run.toml").write_text(f'[[suite]]\nenv = "healthy/x"\n[[suite]]\nenv = "{id}"\n')
    ended = tunix(site, "train", str(tmp_path / "run.toml"))
    assert ended.returncode == 2
    chatter, told = ended.stderr.splitlines()
    assert chatter == "chatter"
    status, phase, says = EXPECTED[name]
    state = f"failed ({phase})" if status == "failed" else f"is {status}"
    assert told.startswith(f"error: '{id}' can't be used, since {name} 1.0 {state}: ") and says in told


def test_a_conflict_is_over_when_one_side_is_left_out(site: Path) -> None:
    shown = tunix(site, "hub", "show", "twin/x", "--json", "-p", "no:tunix-env-usurper")
    assert json.loads(shown.stdout)["package"] == "tunix-env-twin"


# ---- installed by pip ----
def write_wheel(folder: Path, name: str, version: str, code: str) -> Path:
    """A wheel of one module, as any build tool makes it."""
    module, namespace = name.replace("-", "_"), name.removeprefix("tunix-env-")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": code.replace("{namespace}", namespace),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: tunix-core<1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[tunix]\n{namespace} = {module}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def test_a_package_installed_by_pip_is_there_and_uninstalled_is_gone(tmp_path: Path) -> None:
    wheel, site = write_wheel(tmp_path, "tunix-env-pond", "0.3", GOOD), tmp_path / "site"
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
    installed = python(tmp_path, "-m", "pip", "install", *offline, "--target", str(site), str(wheel))
    assert installed.returncode == 0, installed.stderr
    shown = json.loads(tunix(site, "hub", "show", "pond/x", "--json").stdout)
    assert (shown["package"], shown["version"], shown["summary"]) == ("tunix-env-pond", "0.3", "A toy")
    for file in Distribution.at(next(site.glob("*.dist-info"))).files or ():
        Path(str(file.locate())).unlink(missing_ok=True)
    gone = tunix(site, "hub", "show", "pond/x")
    assert gone.returncode == 2
    assert "no installed package has namespace 'pond'. Try: pip install tunix-env-pond" in gone.stderr


# ---- a file ----
REWARDS = """
from tunix_core import RewardSpec, hookimpl
from tunix_core.rewards import reward

@reward(range=(0.0, 1.0))
def brief(episode, limit=3):
    return float(len(episode.final_text) <= limit)

@hookimpl
def tunix_register_rewards(register):
    register(RewardSpec("brief", "my_rewards:brief", "Short is good"))
"""
SCORE = """
import asyncio
from tunix_core.config import RewardConfig
from tunix_core.contracts import Episode
from tunix_core.plugins import Hub
from tunix_core.rewards import make_scorer
from tunix_core.specs import Timeouts
from tunix_core.types import Message, Task

async def score(limit):
    parts = (RewardConfig("my_rewards/brief", weight=2.0, options={"limit": limit}),)
    scorer = make_scorer(parts, lambda id: hub.load_object("rewards", id), range_of_env=(0.0, 1.0), timeouts=Timeouts())
    found = await scorer.score(Episode(Task("t"), (Message.of("assistant", "four"),)))
    await scorer.aclose()
    return found.value

hub = Hub.load(["my_rewards.py"])
print(asyncio.run(score(3)), asyncio.run(score(4)))
"""


def test_a_reward_in_a_file_scores_by_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    (folder / "my_rewards.py").write_text(REWARDS)
    listed = tunix(folder, "hub", "list", "rewards", "-p", "./my_rewards.py")
    assert "my_rewards/brief" in listed.stdout, listed.stderr
    scored = python(folder, "-c", SCORE)
    assert scored.stdout == "0.0 2.0\n", scored.stderr


def test_a_file_without_a_hook_says_so(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(REWARDS.replace("@hookimpl\n", ""))
    shown = tunix(tmp_path, "plugins", "--json", "-p", "my_rewards.py")
    record = json.loads(shown.stdout)[-1]
    assert "tunix_register_rewards is not decorated; write @hookimpl above it" in record["error"]
