"""A stranger's environment package, from its wheel to its removal, beside ours from their wheels."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from email import message_from_string
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import jax
import pytest

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = Path(__file__).parent / "outside"
OURS = {
    "tunix_core": ROOT,
    "tunix_algorithms": ROOT / "plugins/algorithms",
    "tunix_engines": ROOT / "plugins/engines",
    "tunix_models": ROOT / "plugins/models",
    "tunix_rewards": ROOT / "plugins/rewards",
    "tunix_env_games": ROOT / "env_packages/games",
    "tunix_env_math": ROOT / "env_packages/math",
}
SMALL = {"numpy", "pluggy", "gymnasium", "pydantic", "click", "rich", "packaging"}
RUN = """
model = "models/nano"
steps = 3

[trainer]
groups_per_step = 2
rows = 2
row_tokens = 128

[engine]
slots = 8
max_context = 128
prefill_chunk = 16
decode_steps = 2

[[suite]]
env = "lights/switch"
group_size = 4
sampling = { max_tokens = 6 }
"""

pytestmark = pytest.mark.timeout(900)  # a whole virtual environment is made


class Venv:
    """A fresh virtual environment in a folder, which is where its programs run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        mine = ("PYTHON", "TUNIX_", "VIRTUAL_ENV")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        self.environment["JAX_COMPILATION_CACHE_DIR"] = str(jax.config.jax_compilation_cache_dir)
        self.environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        self.run(Path(sys.executable), "-m", "venv", folder / "venv")

    def run(self, program: Path, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [program, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == code, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done

    def python(self, *arguments: str | Path) -> str:
        return self.run(self.bin / "python", *arguments).stdout

    def pip(self, *arguments: str | Path) -> None:
        self.python("-m", "pip", *arguments)

    def tunix(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run(self.bin / "tunix", *arguments, code=code)


def source(name: str, folder: Path, target: Path) -> Path:
    """A copy of one distribution without what earlier builds left, which a build would take in."""
    leave_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "tests")
    shutil.copytree(folder / name, target / name, ignore=leave_out)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        if (folder / file).is_file():
            shutil.copy(folder / file, target)
    return target


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """Our packages, installed from their wheels; all wheels, the stranger's too, are in `wheels`."""
    venv = Venv(tmp_path_factory.mktemp("with a space"))
    sources = [
        source(name, folder, venv.folder / "source" / name)
        for name, folder in {**OURS, "tunix_env_lights": OUTSIDE}.items()
    ]
    venv.pip("install", "setuptools>=77")  # once, rather than once in the isolation of each build
    venv.pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", "wheels", *sources)
    wheels = [wheel(venv, name) for name in OURS]
    venv.pip("install", "--no-compile", "-c", ROOT / "constraints.txt", *wheels)
    return venv


def wheel(venv: Venv, name: str) -> Path:
    (found,) = (venv.folder / "wheels").glob(f"{name}-*.whl")
    return found


@pytest.fixture
def metadata(venv: Venv) -> Callable[[str], Message]:
    def read(name: str) -> Message:
        with ZipFile(wheel(venv, name)) as archive:
            (file,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            return message_from_string(archive.read(file).decode())

    return read


def test_a_strangers_environment_is_used_by_its_id_and_gone_when_uninstalled(venv: Venv) -> None:
    code = "".join(path.read_text() for path in OUTSIDE.rglob("*.py"))
    assert len([line for line in code.splitlines() if line.strip()]) < 60
    (venv.folder / "run.toml").write_text(RUN)

    venv.pip("install", wheel(venv, "tunix_env_lights"))
    assert "lights/switch" in venv.tunix("hub", "list", "envs").stdout
    shown = json.loads(venv.tunix("hub", "show", "lights/switch", "--json").stdout)
    assert (shown["package"], shown["version"]) == ("tunix-env-lights", "0.3")
    assert shown["options"]["lamps"] == {"default": 3, "help": "how many lamps"}
    score = json.loads(venv.tunix("eval", "lights/switch", "--n", "8", "--max-tokens", "6", "--json").stdout)
    assert (score["n"], score["none"], score["failures"]) == (8, 0, {})
    venv.tunix("train", "run.toml")
    (run,) = (venv.folder / "runs").glob("run-*")
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["suite/lights/switch/groups"]) for row in steps] == [(0, 2), (1, 2), (2, 2)]
    assert json.loads((run / "lock.json").read_text())["distributions"]["tunix-env-lights"] == "0.3"

    venv.pip("uninstall", "-y", "tunix-env-lights")
    assert "lights/switch" not in venv.tunix("hub", "list", "envs").stdout
    for command in (["eval", "lights/switch"], ["train", "run.toml"], ["hub", "show", "lights/switch"]):
        assert "Try: pip install tunix-env-lights" in venv.tunix(*command, code=2).stderr


def test_the_core_alone_brings_only_small_packages(metadata: Callable[[str], Message]) -> None:
    required = metadata("tunix_core").get_all("Requires-Dist") or []
    base = [requirement for requirement in required if "extra ==" not in requirement]
    assert {re.split(r"[^\w-]", requirement)[0] for requirement in base} == SMALL


def test_importing_the_core_and_the_environments_loads_no_jax(venv: Venv) -> None:
    code = "import sys, tunix_core, tunix_env_games, tunix_env_math; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in venv.python("-c", code).split()}
    assert "tunix_env_math" in loaded and not loaded & {"jax", "jaxlib", "flax", "optax"}


@pytest.mark.parametrize("name", OURS)
def test_a_wheel_holds_its_package_and_says_what_it_is(
    venv: Venv, metadata: Callable[[str], Message], name: str
) -> None:
    said = metadata(name)
    assert said["License-Expression"] == "Apache-2.0" and said["Summary"] and said.get_payload()
    assert name == "tunix_core" or any("tunix-core" in each for each in said.get_all("Requires-Dist") or [])
    with ZipFile(wheel(venv, name)) as archive:
        files = set(archive.namelist())
    assert {file.partition("/")[0] for file in files if ".dist-info/" not in file} == {name}
    assert f"{name}/py.typed" in files
    assert {p.relative_to(OURS[name]).as_posix() for p in (OURS[name] / name).rglob("*.py")} <= files
