"""The tokenizer that a GGUF file carries in its metadata: byte-level BPE, or SentencePiece's BPE as Gemma has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split

from tunix_core.errors import CheckpointError, did_you_mean
from tunix_core.models.tokenizer import FastTokenizer

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6  # token types; 1 is a piece of text
_SPACE = "▁"


def tokenizer_from_gguf(fields: Mapping[str, Any]) -> FastTokenizer:
    """The tokenizer of a GGUF file.

    Args:
        fields: the file's metadata by whole keys ("tokenizer.ggml.tokens"); plain values, or fields of the
            `gguf` package's reader.

    Raises:
        CheckpointError: there is none, or of a kind, or with a pre-tokenizer, that isn't known.
    """
    kinds = {"gpt2": _byte_level, "llama": _sentence_piece}
    kind = _field(fields, "model", str)
    if kind not in kinds:
        raise CheckpointError(f"the GGUF's tokenizer is {kind!r}; known are {', '.join(kinds)}")
    tokens = _field(fields, "tokens", list)
    types, added = _value(fields, "token_type", [1] * len(tokens)), []
    if len(types) != len(tokens):
        raise CheckpointError(f"the GGUF has {len(tokens)} tokens and {len(types)} token types")
    tokenizer = kinds[kind](fields, tokens, types)
    spaced = kind == "llama" and not _value(fields, "add_space_prefix", True)  # then runs of "▁" are tokens, too
    for token, type in zip(tokens, types, strict=True):
        if type in (_USER_DEFINED, _CONTROL):
            special = type == _CONTROL
            added.append(AddedToken(token, special=special, normalized=spaced and not special))
    tokenizer.add_tokens(added)
    return FastTokenizer(tokenizer)


def special_text(fields: Mapping[str, Any], name: str) -> str:
    """The text of the special token `name` ("bos", "eos", "eot", "unknown", "padding"); "" when the file names none."""
    return _special_text(fields, _field(fields, "tokens", list), name)


def _special_text(fields: Mapping[str, Any], tokens: Sequence[str], name: str) -> str:
    id: int | None = _value(fields, f"{name}_token_id")
    if id is not None and not 0 <= id < len(tokens):
        raise CheckpointError(f"the GGUF names {name} token {id}; it has {len(tokens)} tokens")
    return "" if id is None else tokens[id]


def _byte_level(fields: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    name = _value(fields, "pre", "default")
    if name not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        hint = did_you_mean(str(name), tuple(_PRE_TOKENIZERS))
        raise CheckpointError(f"the GGUF's pre-tokenizer {name!r} is not known; known are {known}.{hint}")
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in _field(fields, "merges", list))]
    whole_words = name in ("llama-bpe", "llama3")
    tokenizer = _bpe(tokens, merges, ignore_merges=whole_words)
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[name]
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _sentence_piece(fields: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """Pieces join in the order of their scores. Spaces are "▁"; what no piece has is written in bytes."""
    scores = _field(fields, "scores", list)
    if len(scores) != len(tokens):
        raise CheckpointError(f"the GGUF has {len(tokens)} tokens and {len(scores)} scores")
    unknown = _special_text(fields, tokens, "unknown") or None
    merges = _merges(tokens, types, scores)
    tokenizer = _bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    spaced = normalizers.Replace(" ", _SPACE)
    prefixed = _value(fields, "add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaced]) if prefixed else spaced
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(BPE({token: id for id, token in enumerate(tokens)}, list(merges), **options))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"the GGUF's merges don't fit its tokens: {error}") from error


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Each way to make a piece of two others, best pieces first."""
    pieces = {token: id for id, token in enumerate(tokens) if types[id] not in (_CONTROL, _USER_DEFINED, _BYTE)}
    best_first = sorted(pieces, key=lambda piece: (-scores[pieces[piece]], pieces[piece]))
    return [pair for piece in best_first for pair in _halves(piece, pieces)]


def _halves(piece: str, pieces: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    cuts = (at for at in range(1, len(piece)) if piece[:at] in pieces and piece[at:] in pieces)
    pairs = [(piece[:at], piece[at:]) for at in cuts]
    yield from sorted(pairs, key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))


def _splitting(pattern: str) -> PreTokenizer:
    to_bytes = ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([Split(Regex(pattern), "isolated"), to_bytes])


def _words(digits: str) -> str:
    """Contractions, words with what precedes them, numbers, signs, line ends, spaces."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT2 = ByteLevel(add_prefix_space=False)
_PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": pre_tokenizers.Sequence([Digits(individual_digits=True), _GPT2]),
    "llama-bpe": _splitting(_words(r"\p{N}{1,3}")),
    "llama3": _splitting(_words(r"\p{N}{1,3}")),
    "qwen2": _splitting(_words(r"\p{N}")),
}


def _field(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    value = _value(fields, name)
    if not isinstance(value, kind):
        expected = f"expected {_PREFIX}{name} to be a {kind.__name__}, found {value!r:.80}"
        raise CheckpointError(f"the GGUF's tokenizer can't be read: {expected}")
    return value


def _value(fields: Mapping[str, Any], name: str, default: Any = None) -> Any:
    value = fields.get(_PREFIX + name, default)
    return value if value is None or isinstance(value, str | int | list) else value.contents()
