"""The decoder families as Hugging Face's config.json states them, read into one `DecoderConfig` and written back.

Does not know weights. What a config asks for and the decoder lacks is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunix_core.errors import UsageError, did_you_mean
from tunix_core.models.config import DecoderConfig, RopeScaling, lengthening

Values = Mapping[str, Any]
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
FEATURES: Mapping[str, Values] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gemma3_text": {"qk_norm": True, "post_norms": True, "centred_norms": True, "activation": "gelu_tanh"},
}
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# What the format's own classes take a missing key to mean.
DEFAULTS: Mapping[str, Values] = {
    "llama": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "qwen2": {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768},
    "qwen3": {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "head_dim": 128},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
}
UNCOVERED = ("attention_bias", "mlp_bias", "attn_logit_softcapping", "final_logit_softcapping")


def family_of(config: DecoderConfig) -> str:
    """The model_type whose features `config` has. Raises UsageError when no family has just those."""
    for family, features in FEATURES.items():
        asked = {"qkv_bias": False, "qk_norm": False, "post_norms": False, "centred_norms": False, "activation": "silu"}
        if all(getattr(config, name) == value for name, value in (asked | dict(features)).items()):
            return family
    raise UsageError("no family of Hugging Face's has this decoder's features; save it as a directory of our own")


def read_config(values: Values) -> DecoderConfig:
    """The decoder that a config.json describes; of one for images and text, its text part.

    Raises:
        UsageError: an unknown architecture, a key that is missing or can't be, or a feature that is not covered.
    """
    inner = values.get("text_config")
    if values.get("model_type") == "gemma3" and isinstance(inner, dict):
        values = {"dtype": values.get("dtype", values.get("torch_dtype")), **inner, "model_type": "gemma3_text"}
    family = values.get("model_type")
    if family not in ARCHITECTURES:
        raise UsageError(
            f"unknown architecture {_architecture(values)!r}; known are {', '.join(ARCHITECTURES.values())}"
        )
    given = {**DEFAULTS[family], **{name: value for name, value in values.items() if value is not None}}
    if uncovered := [name for name in UNCOVERED if given.get(name)]:
        raise UsageError(f"{uncovered[0]} = {given[uncovered[0]]!r} is not covered for {ARCHITECTURES[family]}")
    return DecoderConfig(**_sizes(given), **_rope(given), **_local(given), **_features(family, given))


def write_config(config: DecoderConfig) -> dict[str, Any]:
    """The config.json of a decoder; `read_config` gives the decoder back. Raises UsageError as `family_of`."""
    family = family_of(config)
    values = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_width,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": _written_scaling(config.rope_scaling),
        "tie_word_embeddings": config.tie_embeddings,
        "torch_dtype": config.dtype,
    }
    if family == "gemma3_text":
        return values | _written_gemma(config)
    _check_plain(config)
    return values | {"hidden_act": "silu"} | _written_windows(family, config)


def _architecture(values: Values) -> Any:
    named = values.get("architectures")
    return named[0] if isinstance(named, list) and named else values.get("model_type")


def _sizes(given: Values) -> dict[str, Any]:
    heads = _whole(given, "num_attention_heads")
    width = _whole(given, "hidden_size")
    return {
        "vocab_size": _whole(given, "vocab_size"),
        "width": width,
        "layers": _whole(given, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": given.get("num_key_value_heads", heads),
        "head_dim": given.get("head_dim", width // heads),
        "mlp_width": _whole(given, "intermediate_size"),
        "max_positions": given["max_position_embeddings"],
        "norm_eps": given["rms_norm_eps"],
        "tie_embeddings": bool(given.get("tie_word_embeddings", False)),
        "dtype": _dtype(given),
    }


def _whole(given: Values, name: str) -> int:
    value = given.get(name)
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is {value!r}, expected a whole number of at least 1")
    return value


def _dtype(given: Values) -> str:
    named = str(given.get("dtype", given.get("torch_dtype", "float32")))
    return named if named in ("float32", "float16", "bfloat16") else "float32"


def _rope(given: Values) -> dict[str, Any]:
    """Both spellings: `rope_theta` and `rope_scaling`, or the newer `rope_parameters`, by kind of layer or not."""
    stated = given.get("rope_parameters", {})
    whole, local = stated.get("full_attention", stated), stated.get("sliding_attention", {})
    return {
        "rope_theta": whole.get("rope_theta", given.get("rope_theta", 10_000.0)),
        "rope_scaling": _scaling(given.get("rope_scaling", whole)),
        "local_rope_theta": local.get("rope_theta", given.get("rope_local_base_freq")),
    }


def _scaling(stated: Values) -> RopeScaling | None:
    kind = stated.get("rope_type", stated.get("type", "default"))
    try:
        if kind == "default":
            return None
        if kind == "linear":
            return RopeScaling("linear", stated["factor"])
        if kind == "llama3":
            low, high = stated["low_freq_factor"], stated["high_freq_factor"]
            return RopeScaling("llama3", stated["factor"], low, high, stated["original_max_position_embeddings"])
        if kind == "yarn":
            return _yarn(stated)
    except KeyError as missing:
        raise UsageError(f"rope scaling {kind!r} lacks {missing}") from missing
    raise UsageError(f"rope scaling {kind!r} is not covered; covered are linear, llama3 and yarn")


def _yarn(stated: Values) -> RopeScaling:
    if uncovered := [name for name in ("mscale", "mscale_all_dim") if stated.get(name)]:
        raise UsageError(f"rope scaling 'yarn' with {uncovered[0]} is not covered")
    if stated.get("truncate") is False:
        raise UsageError("rope scaling 'yarn' without truncation is not covered")
    factor = stated["factor"]
    low, high = stated.get("beta_slow") or 1.0, stated.get("beta_fast") or 32.0
    longer = stated.get("attention_factor") or lengthening(factor)
    return RopeScaling("yarn", factor, low, high, stated["original_max_position_embeddings"], longer)


def _local(given: Values) -> dict[str, Any]:
    kinds = given.get("layer_types") or _layer_types(given)
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise UsageError(f"layer type {min(map(str, unknown))!r} is not covered")
    local = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    return {"local_layers": local, "local_window": given.get("sliding_window") if local else None}


def _layer_types(given: Values) -> list[str]:
    layers, pattern = range(given["num_hidden_layers"]), given.get("sliding_window_pattern")
    if pattern:
        return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in layers]
    first = given.get("max_window_layers", 0) if given.get("use_sliding_window") else len(layers)
    return ["full_attention" if i < first else "sliding_attention" for i in layers]


def _features(family: str, given: Values) -> dict[str, Any]:
    features = dict(FEATURES[family])
    stated = given.get("hidden_activation", given.get("hidden_act", "silu"))
    if ACTIVATIONS.get(stated) != features.get("activation", "silu"):
        raise UsageError(
            f"activation {stated!r} is not covered for {ARCHITECTURES[family]}." + did_you_mean(stated, [*ACTIVATIONS])
        )
    if family == "gemma3_text":
        features |= {
            "embedding_scale": given["hidden_size"] ** 0.5,
            "query_scale": given["query_pre_attn_scalar"] ** -0.5,
        }
    return features


def _written_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    if scaling.kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "beta_slow": scaling.low,
            "beta_fast": scaling.high,
            "attention_factor": scaling.attention_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original_positions,
    }


def _layer_kinds(config: DecoderConfig) -> list[str]:
    local = set(config.local_layers)
    return ["sliding_attention" if i in local else "full_attention" for i in range(config.layers)]


def _written_gemma(config: DecoderConfig) -> dict[str, Any]:
    if abs(config.embedding_scale - config.width**0.5) > 1e-6 * config.width:
        raise UsageError(f"{ARCHITECTURES['gemma3_text']} scales embeddings by width ** 0.5 only")
    scalar = (config.query_scale or config.head_dim**-0.5) ** -2
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(scalar),
        "sliding_window": config.local_window,
        "layer_types": _layer_kinds(config),
        "rope_local_base_freq": config.local_rope_theta or config.rope_theta,
    }


def _check_plain(config: DecoderConfig) -> None:
    if config.embedding_scale != 1.0 or config.query_scale is not None or config.local_rope_theta is not None:
        family = ARCHITECTURES[family_of(config)]
        raise UsageError(f"{family} has no embedding_scale, query_scale or local_rope_theta; they can't be saved")


def _written_windows(family: str, config: DecoderConfig) -> dict[str, Any]:
    if not config.local_layers:
        return {}
    if family == "llama":
        raise UsageError(f"{ARCHITECTURES[family]} has no local layers; they can't be saved")
    return {
        "use_sliding_window": True,
        "sliding_window": config.local_window,
        "max_window_layers": min(config.local_layers),
        "layer_types": _layer_kinds(config),
    }
