"""Each algorithm is found through the hook, and its options are those its factory takes."""

from __future__ import annotations

from importlib.metadata import entry_points
from inspect import Parameter, signature

import pytest
from tunix_algorithms import plugin

from tunix_core.algorithms import SHARED
from tunix_core.specs import AlgorithmSpec, load_target


def registered() -> list[AlgorithmSpec]:
    found: list[AlgorithmSpec] = []
    plugin.tunix_register_algorithms(found.append)
    return found


def test_the_entry_point_names_the_plugin() -> None:
    (entry,) = entry_points(group="tunix", name="algorithms")
    assert entry.load() is plugin


@pytest.mark.parametrize("spec", registered(), ids=lambda spec: spec.id)
def test_a_spec_and_its_factory_agree(spec: AlgorithmSpec) -> None:
    make = load_target(spec.target)
    parameters = signature(make).parameters.values()
    taken = {p.name: p.default for p in parameters if p.kind is not Parameter.VAR_KEYWORD}
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        taken |= SHARED
    assert taken == {name: option.default for name, option in spec.options.items()}
    assert make().id == make(**taken).id == spec.id
    assert spec.summary and make.__doc__


def test_every_algorithm_has_a_name_of_its_own() -> None:
    ids = [spec.id for spec in registered()]
    assert len(ids) == len(set(ids)) == 17
