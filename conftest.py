"""Tests marked "docker" need an engine and the image that `.ci/docker` makes. In CI they must run."""

from __future__ import annotations

import os
from functools import cache

import pytest

BASE_IMAGE = "tunix/base:1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several workers one has all of a file, since its fixtures are, and one all that uses the Docker engine."""
    for item in items:
        group = "docker" if item.get_closest_marker("docker") else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") is None or not (reason := missing()):
        return
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
def base_image() -> str:
    """An image with a shell, coreutils, bash, git, patch, python3 and pytest."""
    return BASE_IMAGE
