"""Run by test_placement.py on eight virtual devices; prints a word for each thing that holds."""

from __future__ import annotations

import logging
import sys
import tempfile
import weakref
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from tokenizers import Tokenizer, models

from tunix_core.models import RULES, FastTokenizer, lay_policy, open_policy, place
from tunix_core.models.weights import SafetensorsFile

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden"))
from tiny_checkpoints import tokens, write_checkpoint

said = StringIO()
logging.getLogger("tunix_core").addHandler(logging.StreamHandler(said))
mesh = Mesh(np.asarray(jax.devices()).reshape(2, 4), ("fsdp", "tensor"))


read: list[weakref.ref[np.ndarray]] = []
read_one = SafetensorsFile.read


def counted(source: SafetensorsFile, name: str) -> np.ndarray:
    """Reads a tensor; of those that were read before none is left."""
    assert not any(tensor() is not None for tensor in read)
    found = read_one(source, name)
    read.append(weakref.ref(found))
    return found


def spec(leaf: Any) -> PartitionSpec:
    return leaf.sharding.spec


with tempfile.TemporaryDirectory() as folder:
    write_checkpoint("qwen3", Path(folder))
    (Path(folder) / "tokenizer.json").write_text(FastTokenizer(Tokenizer(models.BPE())).to_json())
    whole = open_policy(folder)
    SafetensorsFile.read = counted
    laid = open_policy(folder, mesh=mesh)
assert len(read) == len(jax.tree.leaves(whole.params)) and not any(tensor() is not None for tensor in read)
print("one at a time")

# 4 heads are split over 4 devices, the 272 words too; 2 heads of keys and values are not.
attention = laid.params["layers"]["0"]["attention"]
assert spec(attention["q"]) == PartitionSpec("fsdp", "tensor")
assert spec(laid.params["embedding"]) == PartitionSpec("tensor", "fsdp")
assert spec(laid.params["norm"]["scale"]) == PartitionSpec(None)
assert attention["q"].addressable_shards[0].data.shape == (24, 16)
print("split")

assert spec(attention["k"]) == PartitionSpec("fsdp", None)
line = "axis 'kv_heads' of 2 is replicated on mesh axis 'tensor' of 4, which doesn't divide it"
assert said.getvalue().count("replicated") == said.getvalue().count(line) == 1, said.getvalue()
print("replicated")

alive: list[weakref.ref[np.ndarray]] = []


def drawn() -> Iterator[tuple[str, np.ndarray]]:
    for layer in range(6):
        assert sum(tensor() is not None for tensor in alive) <= 1
        tensor = np.full((64, 64), layer, np.float32)
        alive.append(weakref.ref(tensor))
        yield f"layers.{layer}.mlp.up", tensor
        del tensor


placed = place(drawn(), mesh, RULES | {"mlp": ("fsdp", "tensor"), "embed": None})
assert spec(placed["layers"]["3"]["mlp"]["up"]) == PartitionSpec(None, ("fsdp", "tensor"))
assert np.asarray(placed["layers"]["3"]["mlp"]["up"] == 3).all()
print("streamed")

model: Any = whole.model
ids, at = tokens().astype(np.int32), np.arange(40, dtype=np.int32)[None]
run = jax.jit(lambda p: model.logits(p, model.forward(p, ids, at, np.full_like(ids, ids.shape[1]))))
np.testing.assert_allclose(run(laid.params), run(whole.params), atol=1e-4)
print("same")

moved = lay_policy(whole, mesh)
jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), moved.params, laid.params)
assert jax.tree.map(spec, moved.params) == jax.tree.map(spec, laid.params)
print("moved")
