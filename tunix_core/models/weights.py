"""Weights out of a checkpoint's files: checked by name and shape first, then read one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open

from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.models.decoder import DecoderModel
from tunix_core.models.paths import Params, flatten, unflatten
from tunix_core.models.placement import RULES, Rules, place

Shape = tuple[int, ...]


class TensorSource(Protocol):
    """Named tensors of one checkpoint. `read` and `shape_of` raise CheckpointError where the file is broken."""

    where: Path
    names: Collection[str]

    def shape_of(self, name: str) -> Shape: ...
    def read(self, name: str) -> np.ndarray: ...


class SafetensorsFile:
    """The tensors of one .safetensors file, read on demand. Raises CheckpointError when it is corrupt or cut off."""

    def __init__(self, path: Path) -> None:
        self.where = path
        try:
            self._file: Any = safe_open(path, "numpy")
            self.names: Collection[str] = frozenset(self._file.keys())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is corrupt or cut off: {_line(error)}") from error

    def shape_of(self, name: str) -> Shape:
        return tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        try:
            return self._file.get_tensor(name)
        except (SafetensorError, OSError, TypeError, AttributeError) as error:  # the latter two: a dtype NumPy lacks
            raise CheckpointError(f"{self.where}: {name!r} can't be read: {_line(error)}") from error


class ShardedSafetensors:
    """The tensors of several .safetensors files, as their index says which holds what.

    Raises CheckpointError when the index is broken, or a file of it is missing, broken or lacks a tensor.
    """

    def __init__(self, index: Path) -> None:
        self.where = index
        self._files = {name: SafetensorsFile(path) for name, path in _shards(index).items()}
        self._holder = {tensor: self._files[file] for tensor, file in _weight_map(index).items()}
        self.names: Collection[str] = self._holder.keys()
        for tensor, file in self._holder.items():
            if tensor not in file.names:
                raise CheckpointError(f"{file.where} lacks {tensor!r}, which {index} says it has")

    def shape_of(self, name: str) -> Shape:
        return self._holder[name].shape_of(name)

    def read(self, name: str) -> np.ndarray:
        return self._holder[name].read(name)


def read_weights(
    source: TensorSource,
    model: DecoderModel,
    *,
    name_of: Callable[[str], str] = str,
    transposed: Callable[[str], bool] = lambda path: False,
    adjust: Callable[[str, np.ndarray], np.ndarray] = lambda path, tensor: tensor,
    ignored: Callable[[str], bool] = lambda name: False,
    mesh: Mesh | None = None,
    rules: Rules = RULES,
) -> Params:
    """The model's weights, in its dtype, one tensor in memory at a time besides what is placed already.

    Args:
        name_of: what the source calls the weight at a path of ours.
        transposed: whether the source holds it as (out, in).
        adjust: a last change to a tensor as the source holds it.
        ignored: names of the source that may be there and are not read.
        mesh: where weights go, by the `rules`; default: the default device.

    Raises:
        CheckpointError: a tensor that is missing, unknown, unreadable, or of another shape than the config says.
    """
    expected = dict(flatten(model.shapes))
    names = {path: name_of(path) for path in expected}
    shapes = {path: leaf.shape[::-1] if transposed(path) else leaf.shape for path, leaf in expected.items()}
    _check(source, names, shapes, ignored)

    def tensor(path: str) -> np.ndarray:
        stored = adjust(path, source.read(names[path]))
        return np.array(stored.T if transposed(path) else stored, expected[path].dtype, order="C")

    tensors = ((path, tensor(path)) for path in expected)
    if mesh is None:
        return unflatten({path: jnp.asarray(tensor) for path, tensor in tensors})
    return place(tensors, mesh, rules, heads_together(model))


def lay_policy(policy: Policy, mesh: Mesh, rules: Rules = RULES) -> Policy:
    """The policy with its weights on a mesh, as `open_policy` lays them; for one that was made elsewhere.

    Raises:
        UsageError: its model is no DecoderModel.
    """
    if not isinstance(policy.model, DecoderModel):
        given = type(policy.model).__name__
        raise UsageError(f"policy {policy.id!r}: a {given} can't be laid on a mesh, a DecoderModel can")
    params = place(flatten(policy.params), mesh, rules, heads_together(policy.model))
    return replace(policy, params=params)


def heads_together(model: DecoderModel) -> Mapping[str, int]:
    """What `place` keeps on one device: whole heads."""
    return {"heads": model.config.head_dim, "kv_heads": model.config.head_dim}


def _check(
    source: TensorSource, names: Mapping[str, str], shapes: Mapping[str, Shape], ignored: Callable[[str], bool]
) -> None:
    where, known = source.where, set(names.values())
    if missing := [name for name in names.values() if name not in source.names]:
        raise CheckpointError(f"{where} lacks {len(missing)} of {len(names)} tensors, {missing[0]!r} first")
    if unknown := sorted(name for name in source.names if name not in known and not ignored(name)):
        raise CheckpointError(f"{where} has {len(unknown)} tensors the config doesn't speak of, {unknown[0]!r} first")
    for path, shape in shapes.items():
        if (found := source.shape_of(names[path])) != shape:
            raise CheckpointError(f"{where}: {names[path]!r} is {_by(found)}, expected {_by(shape)} by the config")


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        found = json.loads(index.read_text("utf-8"))["weight_map"]
        return {str(tensor): str(file) for tensor, file in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is no index of tensors: expected 'weight_map', an object of names") from error


def _shards(index: Path) -> Mapping[str, Path]:
    files = {name: index.parent / name for name in sorted(set(_weight_map(index).values()))}
    for name, path in files.items():
        if path.parent != index.parent:
            raise CheckpointError(f"{index} names {name!r}, which is not beside it")
    if missing := [name for name, path in files.items() if not path.is_file()]:
        raise CheckpointError(f"{index.parent} lacks {len(missing)} of {len(files)} shards, {missing[0]} first")
    return files
