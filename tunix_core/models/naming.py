"""What a weight of ours is called in Hugging Face's checkpoints and in GGUF files. Does not know shapes."""

from __future__ import annotations

from collections.abc import Mapping

# our path: (Hugging Face's, GGUF's)
WHOLE = {
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "norm.scale": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
}
LAYER = {
    "attention_norm.scale": ("input_layernorm.weight", "attn_norm.weight"),
    "attention.q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "attention.k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "attention.v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "attention.o": ("self_attn.o_proj.weight", "attn_output.weight"),
    "attention.q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "attention.k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "attention.v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "attention.q_norm.scale": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "attention.k_norm.scale": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "mlp_norm.scale": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "mlp.gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "mlp.up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "mlp.down": ("mlp.down_proj.weight", "ffn_down.weight"),
}
# With norms after each part too, the name of the norm before the MLP goes to the one after attention.
POST_NORMS: Mapping[str, tuple[str, str]] = {
    "attention_post_norm.scale": ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    "mlp_norm.scale": ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    "mlp_post_norm.scale": ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
}


def huggingface_name(path: str, post_norms: bool) -> str:
    """ "layers.3.attention.q" -> "model.layers.3.self_attn.q_proj.weight"."""
    return _name(path, post_norms, 0, "model.layers.")


def gguf_name(path: str, post_norms: bool) -> str:
    """ "layers.3.attention.q" -> "blk.3.attn_q.weight"."""
    return _name(path, post_norms, 1, "blk.")


def is_transposed(path: str) -> bool:
    """Whether checkpoints hold this weight as (out, in): every matrix but the embedding."""
    return path != "embedding" and not path.endswith((".scale", "_bias"))


def _name(path: str, post_norms: bool, column: int, prefix: str) -> str:
    if path in WHOLE:
        return WHOLE[path][column]
    _, layer, rest = path.split(".", 2)
    table = {**LAYER, **POST_NORMS} if post_norms else LAYER
    return f"{prefix}{layer}.{table[rest][column]}"
