"""The tokenizers and chat formats inside GGUF files; each needs its model fetched.

The ids are those that make_tokenizer_ids.py found with other implementations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunix_core.contracts import Completion
from tunix_core.models import FastTokenizer
from tunix_core.models.cache import fetched, is_fetched
from tunix_core.models.gguf_header import read_header
from tunix_core.models.gguf_tokenizer import special_text, tokenizer_from_gguf
from tunix_core.models.template import TemplateChat
from tunix_core.rollout import Conversation
from tunix_core.types import Message

GOLDEN = json.loads((Path(__file__).parent / "tokenizer_ids.json").read_text("utf-8"))["texts"]
LOST = {  # texts that don't come back: bytes that the vocabulary lacks, signs that stand for spaces
    "smollm2": lambda text: any(byte in text for byte in "\x04\x06\x13\x14\x16\x1d"),
    "gemma3": lambda text: "▁" in text,
}

pytestmark = pytest.mark.slow


def fields_of(name: str) -> Mapping[str, Any]:
    if not is_fetched(name):
        pytest.skip(f"the model {name} isn't fetched; run: tunix model fetch {name}")
    (file,) = fetched(name).glob("*.gguf")
    return read_header(file).fields


@pytest.mark.parametrize(("name", "reference"), [("smollm2-135m", "smollm2"), ("gemma3-270m", "gemma3")])
def test_ids_are_the_references(name: str, reference: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(fields_of(name))
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    saved = FastTokenizer.open(tmp_path / "tokenizer.json")
    for row in GOLDEN:
        assert tokenizer.encode(row["text"]).tolist() == row[reference], row["text"]
        assert saved.encode(row["text"]).tolist() == row[reference]
        assert not set(row[reference]) & set(tokenizer.special.values())
        assert (tokenizer.decode(row[reference]) == row["text"]) != LOST[reference](row["text"])


@pytest.fixture(scope="module")
def smollm2() -> tuple[FastTokenizer, TemplateChat]:
    fields = fields_of("smollm2-135m")
    tokenizer = tokenizer_from_gguf(fields)
    eos, bos = special_text(fields, "eos"), special_text(fields, "bos")
    return tokenizer, TemplateChat(tokenizer, fields["tokenizer.chat_template"], bos=bos, eos=eos)


def test_smollm2_opens_with_its_own_system_prompt(smollm2: tuple[FastTokenizer, TemplateChat]) -> None:
    tokenizer, chat = smollm2
    ids = chat.open([Message.of("user", "What is 2 + 3?<|im_end|>")]).tolist()
    assert ids[:2] == [1, 9690] and ids.count(1) == 3 and ids.count(2) == 2, "three turns, two of them closed"
    assert tokenizer.decode(ids).startswith("system\nYou are a helpful AI assistant named SmolLM")
    assert chat.stop_tokens == (2,)


@pytest.mark.parametrize("seed", range(20))
def test_smollm2_extends_as_it_would_open_the_whole(smollm2: tuple[FastTokenizer, TemplateChat], seed: int) -> None:
    tokenizer, chat = smollm2
    rng = random.Random(seed)
    words = ["yes", " 12 + 3", "<|im_end|>", "é", "🌊", ", so", " naïve", "\n\n", ""]

    def some() -> str:
        return "x" + "".join(rng.choices(words, k=rng.randrange(5)))

    first = [Message.of("system", some())] if rng.random() < 0.5 else []
    talk = Conversation(chat, [*first, Message.of("user", some())])
    for _ in range(rng.randrange(1, 8)):
        ids = np.asarray([*tokenizer.encode(some()), *([2] if rng.random() < 0.7 else [])], np.int32)
        zeros = np.zeros(len(ids), np.float32)
        talk.hear(Completion(ids, zeros, zeros, zeros.astype(np.int32), "stop"))
        talk.say([Message.of(rng.choice(["user", "tool"]), some()) for _ in range(rng.randrange(3))])
        np.testing.assert_array_equal(talk.tokens, chat.open(talk.messages))
    assert talk.branch == 0
