from __future__ import annotations

from dataclasses import astuple

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, pre_tokenizers

from tunix_core.models import ChatTokens, FastTokenizer


@pytest.fixture(scope="session")
def tokenizer() -> FastTokenizer:
    """Bytes and the chat's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in astuple(ChatTokens())])
    return FastTokenizer(bytes_only)
