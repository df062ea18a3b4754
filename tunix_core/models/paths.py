"""Nested weights as paths: the names under which checkpoints and rules know them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Params = dict[str, Any]


def flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with its path joined by dots, in order of the names."""
    for name, value in sorted(params.items()):
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def unflatten(leaves: Mapping[str, Any]) -> Params:
    """The nested dict whose `flatten` gives `leaves`."""
    params: Params = {}
    for path, leaf in leaves.items():
        *parents, name = path.split(".")
        place = params
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = leaf
    return params
