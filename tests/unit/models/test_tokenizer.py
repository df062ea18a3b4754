from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.errors import CheckpointError, UsageError
from tunix_core.models import FastTokenizer


@pytest.mark.parametrize("text", ["<|end|>", "<|call|>{}", "a<|assistant|>b", "<|pad|>" * 3])
def test_text_never_becomes_a_special_token(tokenizer: FastTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not set(ids.tolist()) & set(tokenizer.special.values())
    assert tokenizer.decode(ids) == text


def test_it_stays_so_after_writing_and_reading(tokenizer: FastTokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    again = FastTokenizer.open(tmp_path / "tokenizer.json")
    assert again.special == tokenizer.special
    np.testing.assert_array_equal(again.encode("x<|end|>é"), tokenizer.encode("x<|end|>é"))


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(tokenizer: FastTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decoding_leaves_special_tokens_out(tokenizer: FastTokenizer) -> None:
    end = tokenizer.special_id("<|end|>")
    ids = np.concatenate([[end], tokenizer.encode("up"), [end, tokenizer.vocab_size + 7]])
    assert tokenizer.decode(ids) == "up"


def test_ids_are_int32_below_the_vocabulary_size(tokenizer: FastTokenizer) -> None:
    ids = tokenizer.encode("grüße \U0001f30a\n")
    assert ids.dtype == np.int32
    assert ids.max() < tokenizer.vocab_size
    assert tokenizer.encode("").shape == (0,)


def test_half_a_surrogate_pair_is_a_question_mark(tokenizer: FastTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_an_unknown_special_token_is_refused_with_a_suggestion(tokenizer: FastTokenizer) -> None:
    with pytest.raises(UsageError, match=r"no special token '<\|ends\|>'. Did you mean '<\|end\|>'"):
        tokenizer.special_id("<|ends|>")


@pytest.mark.parametrize("content", ["", "not JSON", "{}", "[1]"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"is not a tokenizer\.json"):
        FastTokenizer.open(tmp_path / "tokenizer.json")
