"""Ids against those of other implementations (see tests/golden/make_tokenizer_ids.py), and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tunix_core.errors import CheckpointError
from tunix_core.models import FastTokenizer
from tunix_core.models.gguf_tokenizer import special_text, tokenizer_from_gguf

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tokenizer_ids.json").read_text("utf-8"))
TEXTS = [row["text"] for row in GOLDEN["texts"]]


def fields(**values: Any) -> Mapping[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


def byte_level(pre: str, **values: Any) -> Mapping[str, Any]:
    return fields(model="gpt2", pre=pre, tokens=GOLDEN["tiny"]["tokens"], merges=GOLDEN["tiny"]["merges"], **values)


def sentence_piece(**values: Any) -> Mapping[str, Any]:
    """Pieces as Gemma has them: specials, runs that users defined, bytes, then text by rank."""
    special, runs = ["<pad>", "<eos>", "<bos>", "<unk>"], ["\n\n", "  ", "   "]
    text = ["ab", "▁ab", "abc", "▁", "a", "b", "c", "\n", "<", "e", "o", "s", ">"]
    tokens = [*special, *runs, *(f"<0x{byte:02X}>" for byte in range(256)), *text]
    types = [3, 3, 3, 2, 4, 4, 4, *[6] * 256, *[1] * len(text)]
    scores = [-1000.0] * 7 + [0.0] * 256 + [-float(i) for i in range(len(text))]
    made = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, "unknown_token_id": 3}
    return fields(**(made | {"add_space_prefix": False} | values))


@pytest.fixture(scope="module")
def spm() -> FastTokenizer:
    return tokenizer_from_gguf(sentence_piece())


@pytest.mark.parametrize(("pre", "reference"), [("qwen2", "qwen2"), ("llama-bpe", "llama3")])
def test_text_is_cut_as_the_reference_cuts_it(pre: str, reference: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(byte_level(pre))
    for row in GOLDEN["texts"]:
        assert tokenizer.encode(row["text"]).tolist() == row[reference], row["text"]
        if pre != "qwen2":  # which normalizes
            assert tokenizer.decode(row[reference]) == row["text"]
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    again = FastTokenizer.open(tmp_path / "tokenizer.json")
    assert [again.encode(text).tolist() for text in TEXTS] == [row[reference] for row in GOLDEN["texts"]]


def test_digits_are_taken_as_the_pre_tokenizer_says() -> None:
    cuts = {name: len(tokenizer_from_gguf(byte_level(name)).encode("0123456789")) for name in ("smollm", "default")}
    assert cuts["smollm"] == 10 > cuts["default"]


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    tokens, size = [*GOLDEN["tiny"]["tokens"], "<|end|>", "<tool_call>"], len(GOLDEN["tiny"]["tokens"])
    made = tokenizer_from_gguf(byte_level("qwen2") | fields(tokens=tokens, token_type=[1] * size + [3, 4]))
    assert made.special == {"<|end|>": size} and made.vocab_size == size + 2
    ids = made.encode("<|end|><tool_call>").tolist()
    assert size not in ids and ids[-1] == size + 1
    assert made.decode([size, *ids]) == "<|end|><tool_call>"


def test_pieces_join_by_score_and_runs_of_spaces_are_tokens(spm: FastTokenizer) -> None:
    def pieces(text: str) -> list[str]:
        return [spm.decode([id]) for id in spm.encode(text)]

    assert pieces("abc ab") == ["abc", " ab"]
    assert pieces("a  ab\n\n\nb") == ["a", "  ", "ab", "\n\n", "\n", "b"]
    assert pieces("▁▁ab") == ["  ", "ab"]
    assert spm.decode(spm.encode("x é 日本🌊\x00")) == "x é 日本🌊\x00"
    assert spm.encode("é").tolist() == [7 + byte for byte in "é".encode()]


def test_special_pieces_in_text_are_text(spm: FastTokenizer) -> None:
    ids = spm.encode("<eos><bos>").tolist()
    assert not set(ids) & set(spm.special.values())
    assert spm.decode(ids) == "<eos><bos>" and spm.special["<eos>"] == 1


def test_a_prefix_space_is_added_and_taken_away_where_the_file_says_so() -> None:
    made = tokenizer_from_gguf(sentence_piece(add_space_prefix=True))
    assert made.encode("ab").tolist() == [264] and made.decode([264]) == "ab"


class Field:
    """A field as the reader of the `gguf` package gives it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def contents(self) -> Any:
        return self._value


def test_fields_may_be_the_readers_own() -> None:
    plain = byte_level("qwen2", eos_token_id=5)
    read = {name: Field(value) for name, value in plain.items()}
    assert tokenizer_from_gguf(read).encode("hello").tolist() == tokenizer_from_gguf(plain).encode("hello").tolist()
    assert special_text(read, "eos") == GOLDEN["tiny"]["tokens"][5] and special_text(read, "bos") == ""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "expected tokenizer.ggml.model to be a str, found None"),
        (fields(model="t5"), "is 't5'; known are gpt2, llama"),
        (fields(model="gpt2"), "tokenizer.ggml.tokens to be a list"),
        (byte_level("qwen3"), "'qwen3' is not known; known are .*Did you mean 'qwen2'"),
        (byte_level("qwen2", token_type=[1]), "tokens and 1 token types"),
        (fields(model="gpt2", tokens=["a"]), "tokenizer.ggml.merges to be a list"),
        (fields(model="gpt2", tokens=["a"], merges=["a b"]), "merges"),
        (fields(model="gpt2", tokens=["a"], merges=["ab"]), "merges"),
        (fields(model="llama", tokens=["a"]), "tokenizer.ggml.scores to be a list"),
        (fields(model="llama", tokens=["a"], scores=[]), "1 tokens and 0 scores"),
        (fields(model="llama", tokens=["a"], scores=[0.0], unknown_token_id=4), "unknown token 4"),
    ],
)
def test_what_is_no_tokenizer_is_refused(given: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        tokenizer_from_gguf(given)
