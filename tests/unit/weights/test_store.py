"""The newest weights: whole, and never older than before."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tunix_core.errors import UsageError
from tunix_core.weights import WeightStore


def test_the_newest_is_what_was_published_last() -> None:
    first, second = {"w": np.zeros(2)}, {"w": np.ones(2)}
    store = WeightStore(3, first)
    assert store.latest().version == 3 and store.latest().params is first
    store.publish(5, second)
    assert store.latest().version == 5 and store.latest().params is second


@pytest.mark.parametrize("version", [3, 2])
def test_a_version_that_does_not_grow_is_refused_and_changes_nothing(version: int) -> None:
    store = WeightStore(3, "kept")
    with pytest.raises(UsageError, match=f"version {version} was published after version 3"):
        store.publish(version, "lost")
    assert store.latest() == (3, "kept")


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(UsageError, match="-1"):
        WeightStore(-1, {})


def test_a_reader_never_sees_the_version_of_one_publication_with_the_parameters_of_another() -> None:
    store = WeightStore(0, 0)
    done = threading.Event()
    torn: list[tuple[int, int]] = []

    def read() -> None:
        while not done.is_set():
            version, params = store.latest()
            if version != params:
                torn.append((version, params))

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(1, 2000):
        store.publish(version, version)
    done.set()
    reader.join(10)
    assert not torn and store.latest() == (1999, 1999)
