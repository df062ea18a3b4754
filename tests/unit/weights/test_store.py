"""The newest weights: whole, and never older than before."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

from tunix_core.contracts import Adapters
from tunix_core.errors import UsageError
from tunix_core.models import AXES_OF_MESH, MeshLayout
from tunix_core.weights import WeightStore, laid, merged


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


def test_what_is_published_is_arranged_once_for_all_readers() -> None:
    calls = []

    def arrange(params: int) -> int:
        calls.append(params)
        return 10 * params

    store = WeightStore(0, 1, arrange)
    store.publish(1, 2)
    assert [store.latest().params for _ in range(3)] == [20, 20, 20]
    assert calls == [1, 2]


def test_what_lies_as_its_readers_need_it_is_not_copied() -> None:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1], object).reshape(1, 1, 1), AXES_OF_MESH)
    layout = MeshLayout(mesh)
    weight = np.ones((4, 4), np.float32)
    here = jax.device_put({"q": weight}, layout.of({"q": weight}))
    (there,) = jax.tree.leaves(laid(layout)(here))
    assert there.unsafe_buffer_pointer() == here["q"].unsafe_buffer_pointer()
    assert there.sharding == layout.of(here)["q"]


def test_adapters_are_merged_where_they_are_read() -> None:
    add = lambda low, high: {"q": high["q"] + low["q"]}  # noqa: E731
    adapters = Adapters(None, {}, base=lambda high: high, join=add, merge=add)  # type: ignore[arg-type]
    given, base = {"q": np.full(2, 3.0, np.float32)}, {"q": np.ones(2, np.float32)}
    store = WeightStore(0, given, merged(adapters, base))
    np.testing.assert_array_equal(store.latest().params["q"], [4.0, 4.0])
