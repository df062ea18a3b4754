"""Who may import whom: checked over the import statements of the whole tree."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "tunix_core"

LAYER_0 = {"types", "errors", "specs"}
LAYER_1 = {
    "contracts": {"specs"},
    "config": {"contracts", "specs"},
    "hookspecs": {"specs", "contracts"},
    "plugins": {"hookspecs", "specs", "contracts"},
}
ROOMS = {
    "tasks", "scheduler", "rollout", "engine", "models", "envs", "tools", "sandboxes", "rewards",
    "trajectory_queue", "algorithms", "trainer", "weights", "reporting",
}  # fmt: skip
EDGES = {
    "scheduler": {"rollout"},
    "envs": {"tools"},
    "trainer": {"algorithms"},
    "engine": {"models"},
    "testing": {"envs", "tools", "rewards", "sandboxes"},
    "cli": {"run", "reporting", "testing"},
}
BASE = {*LAYER_0, *LAYER_1, "profiling"}
JAX_ROOMS = ("engine", "models", "algorithms", "trainer", "weights", "testing/algorithms.py", "profiling/jax.py", "run")
HEAVY = ("tunix_core.engine", "tunix_core.models", "tunix_core.trainer")
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}
PUBLIC = {"", "envs", "tools", "rewards", "sandboxes", "models", "algorithms"}
PLUGIN_MODULES = (
    "tunix_env_", "tunix_algorithms", "tunix_curricula", "tunix_engines", "tunix_models", "tunix_rewards",
    "tunix_sandboxes", "tunix_tools",
)  # fmt: skip
PACKAGES = sorted(p.parent for p in ROOT.glob("plugins/*/pyproject.toml")) + sorted(
    p.parent for p in ROOT.glob("env_packages/*/pyproject.toml")
)


def allowed(room: str) -> set[str]:
    if room in LAYER_0:
        return {"types", "specs"} - {room}
    if room in LAYER_1:
        return LAYER_0 | LAYER_1[room]
    if room == "profiling":
        return set()
    if room == "run":
        return BASE | ROOMS | {"testing"}
    return BASE | EDGES.get(room, set())


def imports(path: Path) -> list[tuple[str, bool]]:
    """(dotted name, whether it stands inside a function) for each import in a file."""
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(n) for f in functions for n in ast.walk(f)}
    typing_only = {
        id(n)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for n in ast.walk(block)
    }
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            if node.module == "tunix_core":
                found += [(f"tunix_core.{a.name}", id(node) in inside) for a in node.names]
            else:
                found.append((node.module, id(node) in inside))
    return found


def room_of(path: Path) -> str:
    first = path.relative_to(CORE).parts[0]
    return first.removesuffix(".py")


def is_room(name: str) -> bool:
    return (CORE / name).is_dir() or (CORE / f"{name}.py").is_file()


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_of_the_core_imports_only_what_its_room_may(path: Path) -> None:
    room = room_of(path)
    for name, _ in imports(path):
        parts = name.split(".")
        if parts[0] == "tunix_core" and len(parts) > 1 and is_room(parts[1]) and room not in ("__init__", parts[1]):
            assert parts[1] in allowed(room), f"{path}: room {room!r} may not import {name}"
        if parts[0] == "tunix_core" and len(parts) > 1 and room == "__init__":
            assert parts[1] in LAYER_0 | {"hookspecs"}
        assert not parts[0].startswith(PLUGIN_MODULES), path


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_jax_is_imported_only_where_it_may(path: Path) -> None:
    relative = path.relative_to(CORE).as_posix()
    in_jax_room = any(relative == r or relative.startswith(f"{r}/") for r in JAX_ROOMS)
    for name, inside in imports(path):
        if name.split(".")[0] in JAX:
            assert in_jax_room, f"{relative} imports {name}"
            assert inside or not relative.startswith("run/"), f"{relative} imports {name} outside a function"
        if relative.startswith("run/") and name.startswith(HEAVY):
            assert inside, f"{relative} imports {name} outside a function"


def test_what_differentiates_knows_no_modules() -> None:
    """Gradients are `jax.grad` of a function of the parameters; those of a module hold them a second time."""
    users = {room_of(p) for p in CORE.rglob("*.py") if any(n.split(".")[0] == "flax" for n, _ in imports(p))}
    assert users == {"models"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_a_package_imports_only_the_public_face(package: Path) -> None:
    own = {p.name for p in package.iterdir() if p.name.startswith("tunix_")}
    for path in package.rglob("*.py"):
        in_tests = "tests" in path.relative_to(package).parts or "scripts" in path.relative_to(package).parts
        for name, _ in imports(path):
            parts = [*name.split("."), ""]
            if parts[0] == "tunix_core" and is_room(parts[1]):
                assert parts[1] in PUBLIC or in_tests, f"{path}: {name} is not public"
            if parts[0].startswith("tunix_") and parts[0] != "tunix_core" and not in_tests:
                assert parts[0] in own, f"{path}: {name} belongs to another package"
            if parts[0] in JAX and not in_tests:
                assert package.name in ("algorithms", "models"), f"{path} imports {name}"


def test_importing_the_core_and_the_environments_loads_no_jax() -> None:
    code = (
        "import sys, tunix_core, tunix_core.plugins, tunix_core.config, tunix_core.cli, tunix_env_games.plugin, "
        "tunix_env_math.plugin, tunix_env_swebench.env, tunix_env_swebench.plugin; "
        "bad = [m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib', 'flax')]; "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
