"""Writes tokenizer_ids.json: texts, and the ids that other implementations give them.

    python make_tokenizer_ids.py SMOLLM2.gguf GEMMA3.gguf

needs transformers, gguf and sentencepiece. The references:

- smollm2: transformers' `AutoTokenizer.from_pretrained(…, gguf_file=…)`, told to take digits one by one, which the
  file's pre-tokenizer "smollm" means and transformers doesn't read (it matters for signs such as Ⅷ only).
- gemma3: transformers in the same way, and sentencepiece itself, given the file's pieces and scores as a model;
  they have to agree.
- qwen2: transformers' Qwen2Tokenizer; llama3: transformers' TikTokenConverter; both over a small vocabulary
  ("tiny") that is trained here, so that what is compared is how text is cut.

Special tokens in a text are plain text everywhere (`split_special_tokens`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

HERE = Path(__file__).parent
TEXTS = [
    "",
    " ",
    "Hello, world! It's 2024; 3.14159 + 1,000,000 = 1000003.14159",
    "I'll we've THEY'RE don't 'S 'sup o'clock",
    "🙂🎉👩‍👩‍👧‍👦🏳️‍🌈🇫🇷🇯🇵👍🏽 emoji🚀in🚀words",
    "日本語のテキストと漢字、ひらがな。中文分词测试,不需要空格。한국어 문장입니다.",
    "e\u0301 a\u0308o\u0308u\u0308 n\u0303 Z\u0351\u036b\u0343\u036aalgo \u0915\u094d\u0937\u093f "
    "\u0e01\u0e33 école vs e\u0301cole ﬁ Ⅷ ½ ①",
    "שלום עולם مرحبا بالعالم नमस्ते Привет Ελληνικά \u202bRTL\u202c",
    "def f(x: int) -> str:\n    if x > 0:\n\t\treturn f\"{x:>10}\"  # comment\n\n\n    return ''\n",
    "#include <stdio.h>\r\nint main(void) {\r\n\tprintf(\"%d\\n\", 0xFF);\r\n}\r\n",
    "<html><body>\n<table><tr><td>&nbsp;</td></tr></table>\n</body></html>",
    "SELECT * FROM t WHERE a>=10 AND b!='x';--drop",
    "".join(map(chr, range(1, 33))) + "\x7f\x80\x85\x9f\xa0\xad\u200b\u200d\u2028\u2029\ufeff\ufffd\x00",
    "   leading,   inner    and trailing   ",
    "\n\n\nlines\n\n \n\t\n  \n",
    "tab\tseparated\t\tvalues\t \t x",
    "a" * 700,
    "antidisestablishmentarianism" * 30,
    "wordwithoutanyend" + "é" * 200 + "漢" * 100,
    "0123456789" * 30,
    "!?" * 150 + "-" * 80 + "=" * 80,
    "<|im_start|>user\nhi<|im_end|><|endoftext|><|eot_id|><start_of_turn>model<end_of_turn><bos></s>[multimodal]",
    "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5e-3, null]}}</tool_call>",
    "▁▁ already ▁marked <0x41> <0x0A> Ġ Ċ",
    "https://example.org/a_b-c?d=e&f=%20#g user@example.org C:\\path\\to\\file",
    "mixed日本語and русский with 123数字456 и عربي٣٤٥",
    "\ufdd0 no character \U0001fffe \U0010ffff \ue000",
]  # fmt: skip


def main(smollm2: str, gemma3: str) -> None:
    ids = {"smollm2": _ids(_smollm2(smollm2)), "gemma3": _gemma(gemma3)}
    tiny = _train()
    ids |= {"qwen2": _qwen2(tiny), "llama3": _llama3(tiny)}
    rows = [json.dumps({"text": text, **{k: v[i] for k, v in ids.items()}}) for i, text in enumerate(TEXTS)]
    head = json.dumps({"tiny": tiny})[1:-1]
    text = "{" + head + ', "texts": [\n' + ",\n".join(rows) + "\n]}\n"
    (HERE / "tokenizer_ids.json").write_text(text, "utf-8")


def _transformers(path: str) -> PreTrainedTokenizerFast:
    file = Path(path)
    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def _smollm2(path: str) -> PreTrainedTokenizerFast:
    tokenizer = _transformers(path)
    inner = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, inner.pre_tokenizer])
    return tokenizer


def _ids(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    options = {"add_special_tokens": False, "split_special_tokens": True}
    return [list(tokenizer(text, **options).input_ids) for text in TEXTS]


def _gemma(path: str) -> list[list[int]]:
    pieces = _sentencepiece(path)
    ids = [pieces.encode(text) for text in TEXTS]
    assert ids == _ids(_transformers(path))
    return ids


def _sentencepiece(path: str) -> sentencepiece.SentencePieceProcessor:
    reader = gguf.GGUFReader(path)
    tokens, types, scores = (
        reader.fields[f"tokenizer.ggml.{n}"].contents() for n in ("tokens", "token_type", "scores")
    )
    model = proto.ModelProto()
    for token, type, score in zip(tokens, types, scores, strict=True):
        piece = token.replace(" ", "▁") if type == 4 else token
        model.pieces.add(piece=piece, score=score, type=2 if token == "<unk>" else type)
    spec = model.trainer_spec
    spec.model_type, spec.byte_fallback, spec.unk_id, spec.bos_id, spec.eos_id, spec.pad_id = 2, True, 3, 2, 1, 0
    spec.bos_piece, spec.eos_piece, spec.pad_piece = "<bos>", "<eos>", "<pad>"
    model.normalizer_spec.name, model.normalizer_spec.add_dummy_prefix = "identity", False
    model.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def _train() -> dict[str, list]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=560, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {"tokens": tokens, "merges": [" ".join(merge) for merge in model["merges"]]}


def _qwen2(tiny: dict[str, list]) -> list[list[int]]:
    vocabulary = {token: i for i, token in enumerate(tiny["tokens"])}
    return _ids(Qwen2Tokenizer(vocab=vocabulary, merges=[tuple(m.split(" ")) for m in tiny["merges"]]))


def _llama3(tiny: dict[str, list]) -> list[list[int]]:
    with tempfile.NamedTemporaryFile() as file:
        pattern = TikTokenConverter(vocab_file=file.name).pattern
    vocabulary = {token: i for i, token in enumerate(tiny["tokens"])}
    merges = [tuple(m.split(" ")) for m in tiny["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return [tokenizer.encode(text).ids for text in TEXTS]


if __name__ == "__main__":
    main(*sys.argv[1:])
