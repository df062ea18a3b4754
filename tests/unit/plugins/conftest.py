"""A site directory to install small distributions into, for one test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., Path]


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test imports from its own folder, or puts on the path, is gone after it."""
    monkeypatch.delenv("TUNIX_DISABLE_PLUGINS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """install(name, code, entries={namespace: module}, requires="...") -> the module's file. Its version is 1.0."""
    site = tmp_path / "site"
    site.mkdir()
    sys.path.insert(0, str(site))

    def add(name: str, code: str, *, entries: dict[str, str] | None = None, requires: str = "") -> Path:
        module = name.replace("-", "_")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0"]
        lines += [f"Requires-Dist: {requires}"] if requires else []
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        named = entries or {name.removeprefix("tunix-"): module}
        (info / "entry_points.txt").write_text("[tunix]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()))
        path = site / f"{module}.py"
        path.write_text(code)
        importlib.invalidate_caches()
        return path

    return add
