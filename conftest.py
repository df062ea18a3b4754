"""Tests marked "docker" need an engine and the image that `.ci/docker` makes. In CI they must run."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

BASE_IMAGE = "tunix/base:1"
DOCKER_TESTS = "tests/docker/"


class ByFile(LoadScopeScheduling):
    """Of several workers one has all of a file, since its fixtures are, and one all that uses the Docker engine."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return DOCKER_TESTS if file.startswith(DOCKER_TESTS) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") is None:
        return
    if reason := missing():
        if os.environ.get("CI", "").lower() in ("", "0", "false"):
            pytest.skip(reason)
        pytest.fail(f"{reason}; in CI the docker tests must run", pytrace=False)


@cache
def missing() -> str:
    """Why there can be no docker tests here; "" when there can."""
    try:
        from tunix_core.sandboxes.docker.engine import Engine

        with Engine(threads=1) as engine:
            engine.call_here(lambda api: api.inspect_image(BASE_IMAGE))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
        return f"no Docker engine with image {BASE_IMAGE} ({error!s:.200}); .ci/docker sets both up"
    return ""


@pytest.fixture(scope="session")
def base_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a shell, coreutils, bash, git, patch, python3 and pytest; for one worker alone, since these tests
    count what is left in the engine."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        (tmp_path_factory.getbasetemp().parent / "docker").touch(exist_ok=False)
    return BASE_IMAGE
