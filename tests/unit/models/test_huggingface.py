"""Hugging Face directories: logits as `transformers` gives them, saving back, and what is said of a broken one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tunix_core.contracts import Policy
from tunix_core.errors import CheckpointError, UsageError
from tunix_core.models import FastTokenizer, open_policy, save_huggingface, save_policy
from tunix_core.models.config import RopeScaling
from tunix_core.models.families import read_config, write_config

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
sys.path.insert(0, str(GOLDEN))
from tiny_checkpoints import CONFIGS, LENGTH, SHOWN, tokens, write_checkpoint  # noqa: E402

FAMILIES = sorted(CONFIGS)


def write(name: str, path: Path, tokenizer: FastTokenizer, **changes: Any) -> Path:
    write_checkpoint(name, path, **changes)
    (path / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    return path


@pytest.fixture(scope="module")
def checkpoints(tokenizer: FastTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in FAMILIES:
        write(name, folder / name, tokenizer)
    return folder


@pytest.fixture
def broken(tokenizer: FastTokenizer, tmp_path: Path) -> Path:
    return write("qwen3", tmp_path / "broken", tokenizer)


def logits(policy: Policy) -> np.ndarray:
    model: Any = policy.model
    ids, at = tokens().astype(np.int32), np.arange(LENGTH, dtype=np.int32)[None]
    whole = jax.jit(lambda p: model.logits(p, model.forward(p, ids, at, np.full_like(ids, ids.shape[1]))))
    return np.asarray(whole(policy.params))[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(checkpoints: Path, name: str) -> None:
    policy = open_policy(checkpoints / name)
    found, expected = logits(policy), np.load(GOLDEN / "tiny_logits.npz")[name]
    np.testing.assert_allclose(found[list(SHOWN)], expected, atol=1e-4, rtol=0)
    model: Any = policy.model
    cached, cache, step = [], (model.init_cache(1, LENGTH + 8),), jax.jit(model.forward_cached)
    for start in range(0, LENGTH, 8):
        ids, at = tokens()[:, start : start + 8], np.arange(start, start + 8)[None]
        hidden, cache = step(policy.params, ids.astype(np.int32), at.astype(np.int32), np.zeros(1, np.int32), cache)
        cached.append(np.asarray(model.logits(policy.params, hidden))[0])
    np.testing.assert_allclose(np.concatenate(cached)[list(SHOWN)], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_saved_back_is_what_was_opened(checkpoints: Path, name: str, tmp_path: Path) -> None:
    policy = open_policy(checkpoints / name)
    save_policy(policy, tmp_path)
    before, after = (load_file(path / "model.safetensors") for path in (checkpoints / name, tmp_path))
    assert before.keys() == after.keys()
    for tensor in before:
        np.testing.assert_array_equal(before[tensor], after[tensor])
    written = json.loads((tmp_path / "config.json").read_text())
    assert read_config(written) == read_config(CONFIGS[name]) == policy.model.config  # pyright: ignore[reportAttributeAccessIssue]
    assert written["architectures"] == CONFIGS[name]["architectures"]
    again = open_policy(tmp_path)
    assert again.chat.stop_tokens == policy.chat.stop_tokens
    np.testing.assert_array_equal(tokens_of(again), tokens_of(policy))


def tokens_of(policy: Policy) -> np.ndarray:
    from tunix_core.types import Message

    return policy.chat.open([Message.of("user", "What is 2 + 3?")])


def test_the_template_and_the_ends_of_turns_are_kept(broken: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}{{ bos_token }}"
    stated = {"eos_token": {"content": "<|end|>"}, "bos_token": "<|system|>", "chat_template": template}
    (broken / "tokenizer_config.json").write_text(json.dumps(stated))
    policy = open_policy(broken)
    ends = policy.tokenizer.special["<|pad|>"]  # pyright: ignore[reportAttributeAccessIssue]
    (broken / "generation_config.json").write_text(json.dumps({"eos_token_id": [ends]}))
    policy = open_policy(broken)
    assert set(policy.chat.stop_tokens) == {ends, policy.tokenizer.special["<|end|>"]}  # pyright: ignore
    save_policy(policy, tmp_path / "again")
    written = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert (written["chat_template"], written["eos_token"], written["bos_token"]) == (template, "<|end|>", "<|system|>")
    again = open_policy(tmp_path / "again")
    assert again.chat.stop_tokens == policy.chat.stop_tokens
    np.testing.assert_array_equal(tokens_of(again), tokens_of(policy))


def test_weights_in_shards_are_the_same_weights(checkpoints: Path, tmp_path: Path) -> None:
    policy = open_policy(checkpoints / "qwen2")
    save_huggingface(policy, tmp_path, shard_bytes=60_000)
    assert not (tmp_path / "model.safetensors").exists()
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert all(shard.name.endswith(f"-of-{len(shards):05}.safetensors") for shard in shards)
    again = open_policy(tmp_path)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), again.params, policy.params)
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=rf"lacks 1 of {len(shards)} shards, {shards[1].name} first"):
        open_policy(tmp_path)
    save_huggingface(policy, tmp_path)
    assert [file.name for file in tmp_path.glob("model*")] == ["model.safetensors"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_is_an_option(checkpoints: Path, tmp_path: Path, dtype: str) -> None:
    policy = open_policy(checkpoints / "gemma3", dtype)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(policy.params)} == {dtype}
    save_policy(policy, tmp_path)
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(open_policy(tmp_path).params)} == {dtype}
    whole = open_policy(checkpoints / "gemma3").params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.01), policy.params, whole)


def test_the_text_part_of_a_model_for_images_and_text(
    checkpoints: Path, tokenizer: FastTokenizer, tmp_path: Path
) -> None:
    inner = {name: value for name, value in CONFIGS["gemma3"].items() if name != "architectures"}
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    stored = load_file(checkpoints / "gemma3" / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in stored.items()}
    save_file(renamed | {"vision_tower.patch": np.ones(2)}, tmp_path / "model.safetensors")
    found, expected = open_policy(tmp_path), open_policy(checkpoints / "gemma3")
    assert found.model.config == expected.model.config  # pyright: ignore[reportAttributeAccessIssue]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), found.params, expected.params)


def test_a_model_with_a_base_alone_for_its_local_layers_keeps_it() -> None:
    stated = {"sliding_attention": {"rope_theta": 5.0}, "full_attention": {"rope_theta": 7.0, "rope_type": "linear"}}
    stated["full_attention"]["factor"] = 2.0
    config = read_config({"model_type": "gemma3_text", **_gemma_sizes(), "rope_parameters": stated})
    assert (config.rope_theta, config.local_rope_theta, config.rope_scaling) == (7.0, 5.0, RopeScaling("linear", 2.0))
    assert read_config(write_config(config)) == config


def _gemma_sizes() -> dict[str, int]:
    return {"hidden_size": 8, "num_hidden_layers": 12, "intermediate_size": 8}


def test_what_is_left_out_means_what_it_means_to_transformers() -> None:
    gemma = read_config({"model_type": "gemma3_text", **_gemma_sizes()})
    assert (gemma.vocab_size, gemma.heads, gemma.kv_heads, gemma.head_dim) == (262_208, 8, 4, 256)
    assert gemma.local_layers == (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)
    llama = read_config({**CONFIGS["llama"], "head_dim": None, "num_key_value_heads": None, "rope_theta": None})
    assert (llama.head_dim, llama.kv_heads, llama.rope_theta) == (12, 4, 10_000.0)


def test_windows_of_the_upper_layers() -> None:
    config = read_config({**CONFIGS["qwen2"], "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1})
    assert (config.local_layers, config.local_window) == ((1, 2), 9)
    assert read_config(write_config(config)) == config
    assert read_config({**CONFIGS["qwen2"], "sliding_window": 9, "max_window_layers": 1}).local_layers == ()


@pytest.mark.parametrize(
    "change",
    [{"qkv_bias": True, "qk_norm": True}, {"embedding_scale": 2.0}, {"query_scale": 0.5}, {"local_rope_theta": 3.0}],
)
def test_a_decoder_that_is_none_of_its_families_is_not_saved(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"can't be saved|no family"):
        write_config(replace(read_config(CONFIGS["llama"]), **change))


def edit(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))


def edit_weights(path: Path, change: Any) -> None:
    stored = load_file(path / "model.safetensors")
    change(stored)
    save_file(stored, path / "model.safetensors")


BREAKS = {
    "unknown architecture 'MambaForCausalLM'; known are Llama": lambda p: edit(
        p, model_type="mamba", architectures=["MambaForCausalLM"]
    ),
    "unknown architecture 'falcon'": lambda p: edit(p, model_type="falcon", architectures=None),
    "hidden_size is None, expected a whole number": lambda p: edit(p, hidden_size=None),
    "num_hidden_layers is '3'": lambda p: edit(p, num_hidden_layers="3"),
    "kv_heads 3 must divide heads 4": lambda p: edit(p, num_key_value_heads=3),
    "attention_bias = True is not covered for Qwen3": lambda p: edit(p, attention_bias=True),
    "rope scaling 'dynamic' is not covered": lambda p: edit(p, rope_scaling={"rope_type": "dynamic", "factor": 4.0}),
    "rope scaling 'yarn' lacks 'original_max": lambda p: edit(p, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "rope scaling 'yarn' with mscale is not": lambda p: edit(p, rope_scaling={"rope_type": "yarn", "mscale": 1.0}),
    "rope scaling 'linear' lacks 'factor'": lambda p: edit(p, rope_scaling={"type": "linear"}),
    "config.json: 'str' object has no attribute": lambda p: edit(p, rope_scaling="double"),
    "activation 'relu' is not covered": lambda p: edit(p, hidden_act="relu"),
    "layer type 'chunked' is not covered": lambda p: edit(p, layer_types=["chunked"] * 3),
    "config.json is not JSON": lambda p: (p / "config.json").write_text("{"),
    "'model.layers.0.mlp.down_proj.weight' is 48x64, expected 48x80": lambda p: edit(p, intermediate_size=80),
    "lacks 11 of 47 tensors, 'model.layers.3": lambda p: edit(p, num_hidden_layers=4),
    "has 11 tensors the config doesn't speak of, 'model.layers.2": lambda p: edit(p, num_hidden_layers=2),
    "lacks 1 of 36 tensors, 'model.norm.weight'": lambda p: edit_weights(p, lambda t: t.pop("model.norm.weight")),
    "model.safetensors is corrupt or cut off": lambda p: (p / "model.safetensors").write_bytes(
        (p / "model.safetensors").read_bytes()[:-50]
    ),
    "lacks model.safetensors and model.safetensors.index.json; pytorch_model.bin is not read": lambda p: (
        p / "model.safetensors"
    ).rename(p / "pytorch_model.bin"),
    "lacks tokenizer.json": lambda p: (p / "tokenizer.json").unlink(),
    "tokenizer.json is not a tokenizer.json": lambda p: (p / "tokenizer.json").write_text("{}"),
    "the tokenizer has 263 ids, the model 100": lambda p: edit(p, vocab_size=100),
    "is no index of tensors": lambda p: (p / "model.safetensors.index.json").write_text("{}"),
    "which is not beside it": lambda p: (p / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../a.safetensors"}}'
    ),
    "lacks 'a', which": lambda p: (p / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model.safetensors"}}'
    ),
    "tokenizer_config.json: expected an object": lambda p: (p / "tokenizer_config.json").write_text("[]"),
}


@pytest.mark.parametrize("expected", BREAKS)
def test_a_broken_directory_is_refused_in_one_line(broken: Path, expected: str) -> None:
    BREAKS[expected](broken)
    with pytest.raises(CheckpointError) as caught:
        open_policy(broken)
    assert expected in str(caught.value)
    assert str(broken) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_of_a_checkpoint_is_never_run(broken: Path) -> None:
    (broken / "modeling.py").write_text("raise SystemExit('run')")
    edit(broken, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    assert open_policy(broken).model.vocab_size == CONFIGS["qwen3"]["vocab_size"]
