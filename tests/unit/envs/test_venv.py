"""Environments whose packages can't be installed together, in one run."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import tunix_core
from tunix_core.envs import make_opener
from tunix_core.envs.wire import FORM
from tunix_core.errors import EnvError, failure_of
from tunix_core.specs import EnvSpec, load_target
from tunix_core.types import Message, Task

WORLD = """
import clashing
from tunix_core.envs import BaseTaskEnv

class World(BaseTaskEnv):
    def _initial_observation(self):
        return f"the library is {clashing.VERSION}"

    def _step_impl(self, action):
        return action, 1.0, True, {}
"""


def install(site: Path, version: int, world: str) -> None:
    """A version of the library, and an environment that uses it."""
    (site / "clashing.py").write_text(f"VERSION = {version}")
    (site / f"{world}.py").write_text(WORLD)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The interpreter of a virtual environment with the core and version 2 of the library."""
    venv.create(tmp_path / "theirs", symlinks=True)
    (site,) = (tmp_path / "theirs").glob("lib/python*/site-packages")
    core, packages = Path(tunix_core.__file__).parents[1], sysconfig.get_path("purelib")
    (site / "core.pth").write_text(f"{core}\n{packages}\n")
    install(site, 2, "their_world")
    return tmp_path / "theirs" / "bin" / "python"


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Version 1 of the library, here."""
    (tmp_path / "ours").mkdir()
    install(tmp_path / "ours", 1, "our_world")
    monkeypatch.syspath_prepend(tmp_path / "ours")
    yield
    for name in ("clashing", "our_world"):
        sys.modules.pop(name, None)


def opener_of(world: str, **how: Any) -> Any:
    return make_opener(EnvSpec(f"{world}/world", f"{world}:World", "unused:unused"), load_target, **how)


async def play(opener: Any) -> tuple[str, float]:
    handle = await opener.open(Task("t"))
    try:
        opening, result = await handle.reset(1), await handle.step(Message.of("assistant", "go"))
        return opening.messages[0].text, result.reward
    finally:
        await handle.close()


@pytest.mark.usefixtures("ours")
def test_two_versions_of_one_library_serve_one_run(theirs: Path) -> None:
    async def main() -> list[tuple[str, float]]:
        async with AsyncExitStack() as stack:
            openers = opener_of("our_world"), opener_of("their_world", isolation="venv", python=str(theirs))
            for opener in openers:
                stack.push_async_callback(opener.aclose)
            return await asyncio.gather(*map(play, openers))

    assert asyncio.run(main()) == [("the library is 1", 1.0), ("the library is 2", 1.0)]
    assert "their_world" not in sys.modules


def test_what_is_not_installed_there_is_one_episodes_failure(theirs: Path) -> None:
    async def main() -> None:
        opener = opener_of("nowhere", isolation="venv", python=str(theirs))
        try:
            with pytest.raises(EnvError, match="No module named 'nowhere'"):
                await play(opener)
        finally:
            await opener.aclose()

    asyncio.run(main())


ANOTHER = """
import json, socket

def main(fd):
    with socket.socket(fileno=fd) as sock:
        while sock.recv(1 << 20):
            body = json.dumps({answer}).encode()
            sock.sendall(len(body).to_bytes(4, "big") + body)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """The interpreter of a virtual environment with another tunix-core, which a test writes to `site(python)`."""
    venv.create(tmp_path / "elsewhere", symlinks=True)
    yield tmp_path / "elsewhere" / "bin" / "python"


def install_another(python: Path, answer: Any) -> None:
    """A tunix-core that answers every question so."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / "tunix_core" / "envs").mkdir(parents=True)
    (site / "tunix_core" / "envs" / "worker.py").write_text(ANOTHER.replace("{answer}", repr(answer)))


OLD_FAILURE = {"error": {"kind": "env_raised", "message": "KeyError: 'env_id'"}}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"value": None}, "no form at all, as an older tunix-core does"),
        (OLD_FAILURE, "no form at all, as an older tunix-core does"),
        ({"form": FORM + 1, "value": {"news": 1}}, f"form {FORM + 1}"),
        ({"form": FORM + 1, "error": "another shape"}, f"form {FORM + 1}"),
    ],
)
def test_another_tunix_core_there_is_told_and_not_tried_again(elsewhere: Path, answer: Any, found: str) -> None:
    install_another(elsewhere, answer)

    async def main() -> None:
        opener = opener_of("theirs", isolation="venv", python=str(elsewhere))
        try:
            with pytest.raises(EnvError) as caught:
                await opener.open(Task("t"))
            failure = failure_of(caught.value)
            assert (failure.kind, failure.boundary, failure.retry) == ("env_contract", "env.open", False)
            assert str(caught.value) == (
                f"{elsewhere} has another tunix-core: its frames tell {found}; expected form {FORM}. "
                f"Install there what runs here: {elsewhere} -m pip install "
                f"tunix-core=={tunix_core.__version__}, or the same checkout"
            )
            assert opener.statistics()["processes"] == opener.statistics()["close_failures"] == 0
        finally:
            await opener.aclose()

    asyncio.run(main())
