"""Which suites get sandboxes, of which kind, and which may do without isolation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunix_core.config import SandboxConfig, SuiteConfig
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.reporting import RunDir
from tunix_core.run.sandboxes import lock_images, make_sandboxes, start_sandboxes
from tunix_core.sandboxes import SandboxRequest
from tunix_core.specs import EnvSpec, Option, SandboxSpec
from tunix_core.testing.sandboxes import FakeSandboxes


def make(size: int = 1, resolve_image: Any = None) -> FakeSandboxes:
    made = FakeSandboxes()
    made.images["resolved"] = {} if resolve_image is None else {resolve_image("image", "linux/amd64"): b""}
    return made


def make_open() -> FakeSandboxes:
    return FakeSandboxes(isolates=False)


class Hub:
    """Has two kinds of sandbox."""

    kinds: Mapping[str, Any] = {"test/closed": make, "test/open": make_open}
    hooks = SimpleNamespace(decide=lambda hook, *, image, platform: f"{hook}:{image}:{platform}")

    def load_object(self, kind: str, identity: str) -> Any:
        return self.kinds[identity]

    def find(self, kind: str, identity: str) -> SandboxSpec:
        return SandboxSpec(identity, "x:y", options={"size": Option(1)})


def suite(name: str, *requires: str) -> Any:
    spec = EnvSpec("test/env", "x:y", "x:z", requires=requires)
    return SimpleNamespace(spec=spec, config=SuiteConfig("test/env", name=name))


def made(config: SandboxConfig, *suites: Any) -> Any:
    return make_sandboxes(config, suites, Hub())  # type: ignore[arg-type]


def test_a_run_that_needs_none_has_none() -> None:
    assert made(SandboxConfig("not/installed"), suite("a"), suite("b", "gpu")) is None


def test_a_kind_gets_its_options_and_the_hook_that_names_images() -> None:
    found = made(SandboxConfig("test/closed", {"size": 2}), suite("a", "sandbox"))
    assert list(found.images["resolved"]) == ["tunix_resolve_image:image:linux/amd64"]


def test_an_unknown_option_says_which_there_are() -> None:
    with pytest.raises(UsageError, match=r"no option 'sise'. Did you mean 'size'\? It takes: size"):
        made(SandboxConfig("test/closed", {"sise": 2}), suite("a", "sandbox"))


def test_isolation_is_given_up_only_by_name() -> None:
    plain, isolated = suite("plain", "sandbox"), suite("strict", "isolated-sandbox")
    assert made(SandboxConfig("test/open"), plain) is not None
    with pytest.raises(UsageError, match=r'suite \'strict\' .* unisolated = \["strict"\]'):
        made(SandboxConfig("test/open"), plain, isolated)
    with pytest.raises(UsageError, match="strict"):
        made(SandboxConfig("test/open", unisolated=("plain",)), plain, isolated)
    assert made(SandboxConfig("test/open", unisolated=("strict",)), plain, isolated) is not None
    assert made(SandboxConfig("test/closed"), plain, isolated) is not None


def test_a_resumed_run_wants_the_images_it_began_with(tmp_path: Path) -> None:
    class Moved(FakeSandboxes):
        async def identify(self, image: str) -> str:
            return f"another {image}"

    async def main(run_dir: RunDir) -> None:
        run_dir.write_json("lock.json", {"seed": 1})
        lock_images(None, run_dir)
        sandboxes = FakeSandboxes()
        assert await start_sandboxes(sandboxes, run_dir)
        await sandboxes.open(SandboxRequest("a:1"))
        lock_images(sandboxes, run_dir)
        assert run_dir.read_json("lock.json") == {"seed": 1, "images": {"a:1": "a:1"}}
        assert await start_sandboxes(FakeSandboxes(), run_dir)
        with pytest.raises(CheckpointError, match="image 'a:1' was a:1 when the run began, and is another a:1 here"):
            await start_sandboxes(Moved(), run_dir)

    with RunDir(tmp_path / "run") as run_dir:
        asyncio.run(main(run_dir))
