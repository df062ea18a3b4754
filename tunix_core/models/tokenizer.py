"""Text to token ids and back, over a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import tokenizers

from tunix_core.errors import CheckpointError, UsageError, did_you_mean

KEPT = 512  # texts whose ids are kept: all of a group open alike, and environments repeat themselves


class FastTokenizer:
    """A `tokenizers.Tokenizer` by which text never becomes a special token.

    Args:
        tokenizer: any tokenizer of that library, taken over: this changes it. What it marks as special is
            special here; tokens that it adds without that mark are ordinary text, and text becomes them.

    Attributes:
        vocab_size: ids are in [0, vocab_size).
        special: the id of each special token, by its text.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.vocab_size: int = max(self._tokenizer.get_vocab().values(), default=-1) + 1  # there may be gaps
        added = self._tokenizer.get_added_tokens_decoder()
        self.special: Mapping[str, int] = {token.content: id for id, token in added.items() if token.special}
        self._encoded = lru_cache(KEPT)(self._ids_of)

    @classmethod
    def open(cls, path: Path) -> FastTokenizer:
        """Reads a tokenizer.json. Raises CheckpointError when it is none."""
        try:
            return cls(tokenizers.Tokenizer.from_str(path.read_text("utf-8")))
        except Exception as error:  # the library raises bare Exception for any malformed file
            raise CheckpointError(f"{path} is not a tokenizer.json: {error}") from error

    def to_json(self) -> str:
        """The content of its tokenizer.json."""
        return self._tokenizer.to_str(pretty=True)

    def encode(self, text: str) -> np.ndarray:
        """int32 [T], read-only. A lone surrogate, which no encoding has, is read as "?"."""
        return self._encoded(text)

    def _ids_of(self, text: str) -> np.ndarray:
        clean = text.encode("utf-8", "replace").decode("utf-8")
        ids = np.asarray(self._tokenizer.encode(clean, add_special_tokens=False).ids, np.int32)
        ids.flags.writeable = False
        return ids

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text of the ids. Special tokens and ids of no token are left out; broken UTF-8 is U+FFFD."""
        ids = tokens if isinstance(tokens, list) else np.asarray(tokens, np.int64).tolist()
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def special_id(self, name: str) -> int:
        """The id of the special token `name`. Raises UsageError when there is none of that name."""
        if name not in self.special:
            hint = did_you_mean(name, tuple(self.special)) or f" It has {', '.join(self.special) or 'none'}."
            raise UsageError(f"the tokenizer has no special token {name!r}.{hint}")
        return self.special[name]
