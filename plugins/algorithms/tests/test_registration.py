"""Each algorithm is found through the hook, and its options are those its factory takes."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import entry_points
from inspect import Parameter, signature

import pytest
from tunix_algorithms import plugin

from tunix_core.algorithms import SHARED
from tunix_core.algorithms.corrections import CORRECTIONS
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


PAPER = re.compile(r"\w\.? (19|20)\d\d, \"")


@pytest.mark.parametrize("spec", registered(), ids=lambda spec: spec.id)
def test_a_formula_names_its_source(spec: AlgorithmSpec) -> None:
    said = " ".join(inspect.getsource(inspect.getmodule(load_target(spec.target))).split())  # type: ignore[arg-type]
    assert PAPER.search(said) or spec.id == "algorithms/sft"  # whose formula is the likelihood alone


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_correction_names_its_source_or_what_it_is_a_part_of(name: str) -> None:
    said = " ".join(str(CORRECTIONS[name].__doc__).split())
    others = "|".join({*CORRECTIONS} - {name})
    assert PAPER.search(said) or re.search(f"`({others})`", said)


def test_the_kl_has_the_gradient_of_k2_and_the_value_of_k3_unless_told_otherwise() -> None:
    assert SHARED["kl"] == "k3_corrected"


def test_every_algorithm_has_a_name_of_its_own() -> None:
    ids = [spec.id for spec in registered()]
    assert len(ids) == len(set(ids)) == 17
