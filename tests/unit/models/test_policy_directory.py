from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import flax as safetensors

from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.models import DecoderConfig, DecoderModel, FastTokenizer, TurnChat, open_policy, save_policy
from tunix_core.models.paths import flatten, unflatten
from tunix_core.types import Message


@pytest.fixture(scope="module")
def policy(tokenizer: FastTokenizer) -> Policy:
    model = DecoderModel(DecoderConfig(tokenizer.vocab_size, 16, 2, 2, 1, 8, 24, 64))
    return Policy("a policy", model, model.init(1), tokenizer, TurnChat(tokenizer))


@pytest.fixture
def saved(policy: Policy, tmp_path: Path) -> Path:
    save_policy(policy, tmp_path / "deep" / "policy")
    return tmp_path / "deep" / "policy"


def logits(policy: Policy) -> np.ndarray:
    ids = policy.chat.open([Message.of("user", "What is 2 + 3?")])[None]
    model, at = policy.model, np.arange(ids.shape[1])[None]
    whole = jax.jit(lambda p: model.logits(p, model.forward(p, ids, at, np.full_like(ids, ids.shape[1]))))
    return np.asarray(whole(policy.params))


def test_what_is_saved_opens_as_the_same_policy(policy: Policy, saved: Path) -> None:
    again = open_policy(saved)
    assert jax.tree.structure(again.params) == jax.tree.structure(policy.params)
    np.testing.assert_array_equal(logits(again), logits(policy))
    assert again.chat.stop_tokens == policy.chat.stop_tokens


def test_saving_again_replaces_what_was_there(policy: Policy, saved: Path) -> None:
    other = replace(policy, params=jax.tree.map(jnp.zeros_like, policy.params))
    save_policy(other, saved)
    assert not logits(open_policy(saved)).any()


@pytest.mark.parametrize(("dtype", "close"), [("bfloat16", 1e-2), ("float16", 1e-3)])
def test_weights_may_be_stored_in_half_the_space(policy: Policy, tmp_path: Path, dtype: str, close: float) -> None:
    save_policy(policy, tmp_path / "half", dtype=dtype)
    save_policy(policy, tmp_path / "whole")
    half, whole = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole"))
    assert half < 0.6 * whole
    again = open_policy(tmp_path / "half")
    assert {leaf.dtype for leaf in jax.tree.leaves(again.params)} == {jnp.dtype("float32")}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=close, rtol=close), again.params, policy.params)


def test_computation_may_be_in_another_dtype(saved: Path) -> None:
    again = open_policy(saved, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(again.params)} == {jnp.dtype("bfloat16")}


def test_an_unknown_dtype_is_refused(policy: Policy, saved: Path) -> None:
    with pytest.raises(UsageError, match="dtype 'int4': expected one of float32"):
        save_policy(policy, saved, dtype="int4")
    with pytest.raises(UsageError, match="dtype 'int4'"):
        open_policy(saved, dtype="int4")


def test_a_foreign_policy_is_not_saved(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="made of object"):
        save_policy(replace(policy, model=object()), tmp_path)


def test_names_are_paths_joined_by_dots(policy: Policy) -> None:
    names = dict(flatten(policy.params))
    assert {"embedding", "head", "norm.scale", "layers.0.attention.q", "layers.1.mlp.down"} < set(names)
    assert jax.tree.structure(unflatten(names)) == jax.tree.structure(policy.params)


def edit_config(path: Path, **decoder: object) -> None:
    config = json.loads((path / "config.json").read_text())
    config["decoder"].update(decoder)
    (path / "config.json").write_text(json.dumps(config))


def edit_weights(path: Path, edit) -> None:
    tensors = safetensors.load((path / "model.safetensors").read_bytes())
    edit(tensors)
    (path / "model.safetensors").write_bytes(safetensors.save(tensors))


def cut(path: Path, name: str) -> None:
    (path / name).write_bytes((path / name).read_bytes()[:-100])


BREAKS = {
    "lacks tokenizer.json": lambda p: (p / "tokenizer.json").unlink(),
    "corrupt or cut off": lambda p: cut(p, "model.safetensors"),
    "model.safetensors is corrupt": lambda p: (p / "model.safetensors").write_bytes(b""),
    "safetensors is corrupt": lambda p: (p / "model.safetensors").write_bytes(b"\xff" * 300),
    "config.json is not JSON": lambda p: cut(p, "config.json"),
    "unknown architecture 'bert'": lambda p: (p / "config.json").write_text('{"architecture": "bert"}'),
    "unknown architecture None": lambda p: (p / "config.json").write_text("[]"),
    "expected 'decoder'": lambda p: (p / "config.json").write_text('{"architecture": "tunix-decoder"}'),
    "layers is 0": lambda p: edit_config(p, layers=0),
    "unknown key 'colour'": lambda p: edit_config(p, colour="blue"),
    "is 24x16, expected 32x16": lambda p: edit_config(p, mlp_width=32),
    "lacks 9 of 30 tensors, 'layers.2": lambda p: edit_config(p, layers=3),
    "lacks 1 of 21 tensors, 'norm.scale'": lambda p: edit_weights(p, lambda t: t.pop("norm.scale")),
    "has 1 tensors the config": lambda p: edit_weights(p, lambda t: t.update(extra=jnp.ones(2))),
    "chat.json: a chat format is": lambda p: cut(p, "chat.json"),
    "tokenizer.json is not a tokenizer.json": lambda p: cut(p, "tokenizer.json"),
    "the tokenizer has 263 ids, the model 100": lambda p: edit_config(p, vocab_size=100),
}


@pytest.mark.parametrize("expected", BREAKS)
def test_a_broken_directory_is_refused_in_one_line(saved: Path, expected: str) -> None:
    BREAKS[expected](saved)
    with pytest.raises(CheckpointError) as caught:
        open_policy(saved)
    assert expected in str(caught.value)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_directory_is_refused(saved: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        open_policy(saved / "config.json")
