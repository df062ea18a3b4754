"""GGUF files, written here from the tiny checkpoints as converters write them."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tunix_core.errors import CheckpointError
from tunix_core.models import open_policy
from tunix_core.models.config import RopeScaling
from tunix_core.models.families import read_config
from tunix_core.models.gguf_file import GgufFile, unpaired
from tunix_core.models.gguf_header import read_header

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden"))
import tiny_checkpoints as tiny

ARCHITECTURES = {
    "llama": "llama", "llama3-rope": "llama", "qwen2": "qwen2", "qwen2-yarn": "qwen2", "qwen3": "qwen3",
    "gemma3": "gemma3",
}  # fmt: skip
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_LAYER = LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str, architecture: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{(GEMMA_LAYER if architecture == 'gemma3' else LAYER)[rest]}.{kind}"


def paired(tensor: np.ndarray, heads: int) -> np.ndarray:
    """The order of rows that llama's converter writes: the halves of each head interleaved."""
    return tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def as_converted(name: str, tensor: np.ndarray, architecture: str) -> np.ndarray:
    if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        return paired(tensor, tiny.HEADS if "q_proj" in name else tiny.KV_HEADS)
    return tensor + np.float32(1) if architecture == "gemma3" and "norm" in name else tensor


def write(
    path: Path, name: str, change: Callable[[gguf.GGUFWriter], None] | None = None, split: int = 0, **replaced: Any
) -> Path:
    config, architecture = tiny.CONFIGS[name] | replaced, ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, config.get("architecture", architecture), split_max_tensors=split)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 1e6))
    if architecture == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
    add_tokenizer(writer)
    for tensor_name, tensor in tiny.tensors(name):
        writer.add_tensor(gguf_name(tensor_name, architecture), as_converted(tensor_name, tensor, architecture))
    if change:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*alphabet, "ab", "<s>", "</s>"])
    writer.add_token_types([1] * (len(alphabet) + 1) + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(alphabet) + 1)
    writer.add_eos_token_id(len(alphabet) + 2)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_its_policy_is_that_of_the_checkpoint_it_was_made_from(tmp_path: Path, name: str) -> None:
    policy = open_policy(write(tmp_path / "a.gguf", name))
    tiny.write_checkpoint(name, tmp_path / "origin")
    (tmp_path / "origin" / "tokenizer.json").write_text(policy.tokenizer.to_json())  # pyright: ignore
    origin = open_policy(tmp_path / "origin")
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), policy.params, origin.params)
    assert policy.model.config == origin.model.config  # pyright: ignore[reportAttributeAccessIssue]
    assert policy.chat.stop_tokens == (258,)


def test_gemma3_takes_from_the_file_what_no_field_says(tmp_path: Path) -> None:
    policy = open_policy(write(tmp_path / "a.gguf", "gemma3"))
    config: Any = policy.model.config  # pyright: ignore[reportAttributeAccessIssue]
    assert (config.local_layers, config.local_window, config.local_rope_theta) == ((0, 1), 8, 10_000.0)
    assert (config.rope_scaling, config.norm_eps) == (RopeScaling("linear", 8.0), 1e-5)
    assert config.query_scale == config.head_dim**-0.5
    stored = dict(tiny.tensors("gemma3"))["model.layers.1.pre_feedforward_layernorm.weight"]
    np.testing.assert_allclose(policy.params["layers"]["1"]["mlp_norm"]["scale"], stored, atol=2e-7)


def llama3_factors() -> np.ndarray:
    """As llama's converter computes them for a Llama 3 of 32 768 positions."""
    rates = 500_000.0 ** -(np.arange(8) / 8)
    waves = 2 * np.pi / rates
    smooth = (8192 / waves - 1) / 3
    between = 1 / ((1 - smooth) / 32 + smooth)
    return np.where(waves < 2048, 1.0, np.where(waves > 8192, 32.0, between)).astype(np.float32)


def test_the_slowed_frequencies_of_llama3_are_recognised(tmp_path: Path) -> None:
    file = write(tmp_path / "a.gguf", "llama3-rope", lambda w: w.add_tensor("rope_freqs.weight", llama3_factors()))
    config: Any = open_policy(file).model.config  # pyright: ignore[reportAttributeAccessIssue]
    assert config.rope_scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)
    odd = write(
        tmp_path / "b.gguf", "llama3-rope", lambda w: w.add_tensor("rope_freqs.weight", np.full(8, 2, np.float32))
    )
    with pytest.raises(CheckpointError, match="another way than Llama 3 does"):
        open_policy(odd)


def test_yarn_is_read_as_from_the_checkpoint(tmp_path: Path) -> None:
    def stated(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)

    config: Any = open_policy(write(tmp_path / "a.gguf", "qwen2-yarn", stated)).model.config  # pyright: ignore
    assert config == read_config(tiny.CONFIGS["qwen2-yarn"])


def test_pairing_is_undone() -> None:
    tensor = np.random.default_rng(0).standard_normal((64, 48), np.float32)
    np.testing.assert_array_equal(unpaired(paired(tensor, 4), 16), tensor)


QUANTIZED = [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_a_quantized_tensor_is_read_as_the_numbers_it_stands_for(tmp_path: Path, kind: Kind) -> None:
    tensor = np.random.default_rng(0).standard_normal((6, 64), np.float32)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    packed = tensor.astype(np.float16) if kind == Kind.F16 else gguf.quants.quantize(tensor, kind)
    writer.add_tensor("a", packed, raw_dtype=None if kind == Kind.F16 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "a.gguf")
    assert file.shape_of("a") == (6, 64)
    found = file.read("a")
    assert (found.dtype, found.shape) == (np.float32, (6, 64))
    assert np.linalg.norm(found - tensor) < 0.1 * np.linalg.norm(tensor)


def can_be_dequantized(kind: Kind) -> bool:
    try:
        gguf.quants.dequantize(np.zeros((1, 256 * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


ALL_KINDS = [kind for kind in Kind if can_be_dequantized(kind)]


def write_raw(path: Path, tensors: dict[str, tuple[np.ndarray, Kind]]) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


@np.errstate(all="ignore")
def test_every_type_that_the_package_can_dequantize_is_read(tmp_path: Path) -> None:
    assert len(ALL_KINDS) > 20
    rng, rows = np.random.default_rng(0), 3
    sizes = {kind: 512 // gguf.GGML_QUANT_SIZES[kind][0] * gguf.GGML_QUANT_SIZES[kind][1] for kind in ALL_KINDS}
    raws = {kind: rng.integers(0, 120, (rows, size), np.uint8) for kind, size in sizes.items()}
    file = write_raw(tmp_path / "a.gguf", {kind.name: (raw, kind) for kind, raw in raws.items()})
    for kind, raw in raws.items():
        found = file.read(kind.name)
        assert (found.dtype, found.shape) == (np.float32, (rows, 512))
        np.testing.assert_array_equal(found, gguf.quants.dequantize(raw, kind), str(kind))


def test_a_type_that_cannot_be_dequantized_is_told(tmp_path: Path) -> None:
    file = write_raw(tmp_path / "a.gguf", {"a": (np.zeros((1, 32), np.uint8), Kind.I32)})
    with pytest.raises(CheckpointError, match="'a' of type I32 can't be dequantized"):
        file.read("a")


def test_a_file_that_was_split_is_opened_by_any_of_its_parts(tmp_path: Path) -> None:
    whole = open_policy(write(tmp_path / "whole.gguf", "qwen3"))
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts" / "a.gguf", "qwen3", split=20)
    first, second = sorted((tmp_path / "parts").glob("*.gguf"))
    assert (first.name, second.name) == ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")
    for path in (first, second, tmp_path / "parts"):
        jax.tree.map(np.testing.assert_array_equal, open_policy(path).params, whole.params)
    second.rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 parts, a-00002-of-00002\.gguf first"):
        open_policy(first)
    first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"is one of 2 parts; expected names like x-00001-of-00002\.gguf"):
        open_policy(tmp_path / "renamed.gguf")


def test_a_part_of_another_model_is_not_one_of_its_parts(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", "qwen3", split=20)
    write(tmp_path / "b.gguf", "qwen2", split=30)
    (tmp_path / "b-00002-of-00002.gguf").rename(tmp_path / "a-00002-of-00002.gguf")
    with pytest.raises(CheckpointError, match=r"and its parts have \d+ tensors, expected 36"):
        open_policy(tmp_path / "a-00001-of-00002.gguf")


@pytest.mark.parametrize("size", range(0, 4096, 61))
def test_wherever_it_is_cut_off_it_is_refused(head: bytes, tmp_path: Path, size: int) -> None:
    (tmp_path / "a.gguf").write_bytes(head[:size])
    with pytest.raises(CheckpointError, match=r"a\.gguf is corrupt, cut off or no GGUF file: .+"):
        read_header(tmp_path / "a.gguf")


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("head") / "a.gguf", "qwen3").read_bytes()


@settings(max_examples=100)
@given(at=st.integers(0, 12_000), byte=st.integers(0, 255))
def test_a_head_with_a_wrong_byte_is_read_or_refused(head: bytes, at: int, byte: int) -> None:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(head[:at] + bytes([byte]) + head[at + 1 :])
        file.flush()
        with contextlib.suppress(CheckpointError):
            read_header(Path(file.name))


def test_the_head_is_that_of_the_packages_reader(head: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(head)
    found, expected = read_header(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "a.gguf")
    fields = {name: field.contents() for name, field in expected.fields.items() if not name.startswith("GGUF.")}
    assert found.fields == fields
    places = {name: (list(place.shape), place.kind, place.start, place.size) for name, place in found.tensors.items()}
    assert places == {
        tensor.name: (tensor.shape.tolist()[::-1], tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
        for tensor in expected.tensors
    }


def cut(path: Path, bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-bytes])


def test_a_broken_file_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.gguf", "qwen3")
    breaks: dict[str, Callable[[Path], object]] = {
        "no GGUF file": lambda path: path.write_bytes(b"GGUX" + bytes(100)),
        "is corrupt, cut off or": lambda path: path.write_bytes(b""),
        "cut off": lambda path: cut(path, 3000),
        "corrupt": lambda path: path.write_bytes(path.read_bytes()[:600]),
        "unknown architecture 'mamba'; known are llama": lambda path: write(path, "qwen3", architecture="mamba"),
        "'blk.0.ffn_down.weight' is 48x64, expected 48x80": lambda path: write(path, "qwen3", intermediate_size=80),
        "lacks 11 of 47 tensors, 'blk.3": lambda path: write_deep(path),
        "with 8 experts is not covered": lambda path: write(path, "qwen3", lambda w: w.add_expert_count(8)),
        "rotary positions on 8 of 16": lambda path: write(path, "qwen3", lambda w: w.add_rope_dimension_count(8)),
        "names eos token 999; it has 259": lambda path: write(path, "qwen3", lambda w: w.add_eos_token_id(999)),
        "general.alignment is 'x', expected": lambda path: write(
            path, "qwen3", lambda w: w.add_string("general.alignment", "x")
        ),
        "rope scaling 'longrope' is not covered": lambda path: write(
            path, "qwen3", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        ),
        "qwen3.rope.scaling.factor is missing": lambda path: write(
            path, "qwen3", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        ),
    }
    for number, (expected, change) in enumerate(breaks.items()):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(whole.read_bytes())
        change(path)
        with pytest.raises(CheckpointError) as caught:
            open_policy(path)
        assert expected in str(caught.value), expected
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def write_deep(path: Path) -> None:
    """A file whose fields promise one more layer than its tensors have."""
    tensors = list(tiny.tensors("qwen3"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "tensors", lambda name: tensors)
        write(path, "qwen3", num_hidden_layers=4)


def test_a_folder_with_one_such_file_opens_and_with_two_names_them(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", "qwen3")
    assert open_policy(tmp_path).model.vocab_size == tiny.VOCAB
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"has 2 \.gguf files; name one of them: a\.gguf, b\.gguf"):
        open_policy(tmp_path)
