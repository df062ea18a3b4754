"""Tiny Hugging Face directories with random weights, one a family: a function of a seed, nothing is stored.

Used by the tests, and by make_model_figures.py, which asks `transformers` for their logits. Needs NumPy and
safetensors alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 272, 48, 3, 4, 2, 16, 64
LENGTH, SHOWN = 40, (0, 1, 6, 13, 24, 39)  # tokens of the text, and those whose logits are kept
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": MLP,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**BASE, **LLAMA, "rope_theta": 10000.0, "num_hidden_layers": 11},  # names sort "10" before "2"
    "llama3-rope": {**BASE, **LLAMA, "rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": True},
    "qwen2": {**BASE, **QWEN2, "rope_theta": 1000000.0},
    "qwen2-yarn": {**BASE, **QWEN2, "rope_theta": 10000.0, "rope_scaling": YARN},
    "qwen3": {**BASE, **QWEN3, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}},
    "gemma3": {
        **BASE,
        **GEMMA3,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 24,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 8,
        "sliding_window_pattern": 3,
        "tie_word_embeddings": True,
    },
}


def tokens() -> np.ndarray:
    """The text: int64 [1, LENGTH]."""
    return np.random.default_rng(5).integers(0, VOCAB, (1, LENGTH))


def write_checkpoint(name: str, directory: Path, **changes: Any) -> None:
    """Writes config.json and model.safetensors of the family `name`; `changes` replace keys of its config."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS[name], **changes}
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    save_file(dict(tensors(name)), directory / "model.safetensors", metadata={"format": "pt"})


def tensors(name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor by Hugging Face's name for it, matrices (out, in), float32."""
    config, rng = CONFIGS[name], np.random.default_rng([7, *name.encode()])
    kind = config["model_type"]
    centre = 0.0 if kind == "gemma3_text" else 1.0

    def matrix(out: int, into: int) -> np.ndarray:
        return rng.standard_normal((out, into), np.float32) * np.float32(into**-0.5)

    def norm(size: int) -> np.ndarray:
        return np.float32(centre) + rng.standard_normal(size, np.float32) * np.float32(0.2)

    yield "model.embed_tokens.weight", matrix(VOCAB, WIDTH) * np.float32(1 if kind == "gemma3_text" else 7)
    yield "model.norm.weight", norm(WIDTH)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", matrix(VOCAB, WIDTH)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind == "gemma3_text":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for each in norms:
            yield f"{prefix}{each}.weight", norm(WIDTH)
        for each, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            yield f"{prefix}self_attn.{each}_proj.weight", matrix(heads * HEAD_DIM, WIDTH) * np.float32(2)
            if kind == "qwen2":
                yield f"{prefix}self_attn.{each}_proj.bias", rng.standard_normal(heads * HEAD_DIM, np.float32)
            if kind in ("qwen3", "gemma3_text") and each in "qk":
                yield f"{prefix}self_attn.{each}_norm.weight", norm(HEAD_DIM)
        yield f"{prefix}self_attn.o_proj.weight", matrix(WIDTH, HEADS * HEAD_DIM)
        for each in ("gate", "up"):
            yield f"{prefix}mlp.{each}_proj.weight", matrix(MLP, WIDTH)
        yield f"{prefix}mlp.down_proj.weight", matrix(WIDTH, MLP)
