"""Weights on a mesh: in a process of its own, since a process has one count of virtual devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from tunix_core.errors import UsageError
from tunix_core.models import DecoderConfig, DecoderModel, logical_axes, place
from tunix_core.models.paths import flatten

SCRIPT = Path(__file__).with_name("placement_script.py")


def test_on_eight_devices() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["one at a time", "split", "replicated", "streamed", "same", "moved"]


def test_every_weight_of_every_family_has_axes() -> None:
    sizes = dict(vocab_size=11, width=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=8, max_positions=16)
    config = DecoderConfig(**sizes, qkv_bias=True, qk_norm=True, post_norms=True)
    for path, leaf in flatten(DecoderModel(config).shapes):
        assert len(logical_axes(path)) == leaf.ndim, path


def test_a_rule_for_an_axis_that_is_none_is_refused() -> None:
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("tensor",))
    with pytest.raises(UsageError, match="rule for 'haeds': no weight has such an axis; known are embed, heads"):
        place([("layers.0.attention.q", np.zeros((4, 4)))], mesh, {"haeds": "tensor"})
