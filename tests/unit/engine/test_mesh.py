"""An engine on a mesh says what one device says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from tunix_core.engine.layout import Layout
from tunix_core.errors import ConfigError

SCRIPT = Path(__file__).parent / "mesh_script.py"


def test_on_eight_devices_an_engine_says_what_it_says_on_one() -> None:
    where = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=where, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["devices"] == 8
    assert all(same for same, greedy in zip(told["same"], told["greedy"], strict=True) if greedy)
    assert len(told["apart"]) == len(told["same"]) and max(told["apart"]) < 1e-4


def test_slots_that_a_mesh_cannot_share_out_are_refused_with_the_numbers() -> None:
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "tensor"))
    with pytest.raises(ConfigError, match=r"engine\.slots is 6.*data axis of 4"):
        Layout(mesh, {}, slots=6)  # type: ignore[arg-type]
