"""A step on a mesh is a step on one device: in a process of its own, which has eight virtual devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("mesh_script.py")
ALL = ["data", "fsdp", "tensor", "all", "disjoint"]


def same(*arguments: str) -> list[str]:
    """The meshes on which loss, gradient and updated parameters are one device's (relative 1e-5).

    The compiler, which warns where it has to replicate what is computed on the way, finds nothing to warn of.
    """
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Involuntary full rematerialization" not in done.stderr
    return done.stdout.split()


def test_all_axes_at_once_and_trainer_and_reference_apart() -> None:
    assert same("tiny", "all", "disjoint") == ["all", "disjoint"]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["nano", "smollm2"])
@pytest.mark.parametrize("mesh", ALL)
def test_every_mesh(shape: str, mesh: str) -> None:
    assert same(shape, mesh) == [mesh]
