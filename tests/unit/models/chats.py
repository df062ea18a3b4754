"""The families' chat formats over one small tokenizer, for the tests of chat formats."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, pre_tokenizers

from tunix_core.contracts import Completion
from tunix_core.models import FastTokenizer
from tunix_core.models.template import TemplateChat

TEMPLATES = Path(__file__).parent / "templates"
SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>",
)  # fmt: skip
FAMILIES = {
    "llama3": ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
    "qwen2": ("", "<|endoftext|>", "<|im_end|>"),
    "qwen3": ("", "<|endoftext|>", "<|im_end|>"),
    "gemma3": ("<bos>", "<eos>", "<end_of_turn>"),
    "smollm2": ("", "<|im_end|>", "<|im_end|>"),
}
LOOK = {"name": "look", "description": "Looks <|im_end|>.", "parameters": {"properties": {"where": {"type": "string"}}}}


class Counting(FastTokenizer):
    """Counts the characters it tokenizes."""

    characters = 0

    def encode(self, text: str) -> np.ndarray:
        self.characters += len(text)
        return super().encode(text)


def make_tokenizer() -> Counting:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return Counting(inner)


TOKENIZER = make_tokenizer()
NAMES = {id: name for name, id in TOKENIZER.special.items()}


def source(family: str) -> str:
    return (TEMPLATES / f"{family}.jinja").read_text()


def make_chat(family: str, **options) -> TemplateChat:
    bos, eos, _ = FAMILIES[family]
    return TemplateChat(TOKENIZER, source(family), bos=bos, eos=eos, today=date(2025, 1, 2), options=options)


CHATS = {family: make_chat(family) for family in FAMILIES}
every_family = pytest.mark.parametrize("family", FAMILIES)


def shown(ids: np.ndarray) -> str:
    """The ids as text, special tokens included."""
    parts, place = [], 0
    for at in [*np.flatnonzero(np.isin(ids, list(NAMES))), len(ids)]:
        parts += [TOKENIZER.decode(ids[place:at]), NAMES[int(ids[at])] if at < len(ids) else ""]
        place = at + 1
    return "".join(parts)


def completion(ids: np.ndarray) -> Completion:
    return Completion(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.float32), np.zeros(len(ids)), "stop")


def sampled(text: str, stop: str = "") -> np.ndarray:
    end = [TOKENIZER.special_id(stop)] if stop else []
    return np.asarray([*TOKENIZER.encode(text), *end], np.int32)
