"""Suites of the sample environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunix_core.contracts import EnvOpener
from tunix_core.envs import make_opener
from tunix_core.envs.worker import load_class
from tunix_core.specs import EnvSpec, Timeouts
from tunix_core.types import Task

SAMPLES = Path(__file__).with_name("sample_envs.py")


def load(target: str) -> Any:
    module, _, attr = target.partition(":")
    return load_class(module, attr, str(SAMPLES))


@pytest.fixture
def suite() -> Callable[..., EnvOpener]:
    """`suite("Probe", do="hang", step_s=0.1, isolation="process")` -> its opener."""

    def make(
        cls: str, *, max_abandoned: int = 8, decide: Any = None, isolation: Any = None, **options: Any
    ) -> EnvOpener:
        limits = {name: options.pop(name) for name in ("reset_s", "step_s", "close_s") if name in options}
        spec = EnvSpec("sample/" + cls, f"tunix_sample_envs:{cls}", "unused:unused", max_turns=3)
        timeouts = Timeouts(**{"reset_s": 20.0, "step_s": 20.0, "close_s": 5.0, **limits})
        return make_opener(
            spec,
            load,
            isolation=isolation,
            timeouts=timeouts,
            max_abandoned=max_abandoned,
            options=options,
            decide=decide,
        )

    return make


@pytest.fixture
def task() -> Task:
    return Task("t1", {"question": "1 + 1?", "answer": "2"}, gold="2")


@pytest.fixture
def release() -> Iterator[Any]:
    """The event that the sample environments' "wait" waits for; set at the end, so that no thread stays."""
    event = load("tunix_sample_envs:RELEASE")
    event.clear()
    yield event
    event.set()
