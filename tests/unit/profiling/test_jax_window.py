"""JAX's profiler, on the clock of the spans."""

from __future__ import annotations

import time
from pathlib import Path

import jax
import jax.numpy as jnp

from tunix_core.profiling.jax import jax_window, read_window


def test_what_xla_did_is_told_on_the_clock_of_the_spans(tmp_path: Path) -> None:
    product = jax.jit(lambda x: (x @ x).sum())
    x = jnp.ones((256, 256))
    product(x).block_until_ready()
    with jax_window(tmp_path):
        before_ns = time.time_ns()
        product(x).block_until_ready()
        after_ns = time.time_ns()
    slices = list(read_window(tmp_path))
    assert slices and all(each.start_ns < each.end_ns and each.track[0] == "CPU" for each in slices)
    slack_ns = 5_000_000  # two clocks are read one after the other
    assert any(before_ns - slack_ns <= each.start_ns <= each.end_ns <= after_ns + slack_ns for each in slices)


def test_a_folder_without_windows_has_nothing(tmp_path: Path) -> None:
    assert list(read_window(tmp_path)) == []
