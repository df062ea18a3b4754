"""Whole runs of a tiny random policy. Programs that one run compiled, the next ones load."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small_run import SMALL, SUITE, TROUBLE


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., Any]:
    """`launch(options="failing = 0.2", rest="[scheduler]\\n…", steps=2, name="run")` trains and gives the result.

    However it ends, the trainer's thread ends with it.
    """

    def go(options: str = "", rest: str = "", steps: int = 2, name: str = "run", suite: str = SUITE, **how: Any) -> Any:
        from tunix_core.config import load_config
        from tunix_core.plugins import Hub
        from tunix_core.run import train

        text = SMALL.format(steps=steps, run_dir=tmp_path / name) + rest + suite.format(options=options)
        others = set(threading.enumerate())
        try:
            return train(load_config(None, text=text), hub=Hub.load(files=[TROUBLE]), **how)
        finally:
            assert not [thread for thread in set(threading.enumerate()) - others if thread.name == "tunix-trainer"]

    return go
