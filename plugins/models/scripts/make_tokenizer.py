"""Makes nano's directory anew: its tokenizer, chat format and shape, with random weights.

    python scripts/make_tokenizer.py [DIRECTORY]

A byte-level BPE over a corpus that this script writes itself. Digits stand alone, so that a number
reads the same in a question and in a call; so does every cell of a grid; the punctuation of a tool
call is a token for each stretch. The same on every run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tunix_core.models import ChatTokens, DecoderConfig, DecoderModel, FastTokenizer, Policy, TurnChat, save_policy

DIRECTORY = Path(__file__).resolve().parent.parent / "tunix_models" / "data" / "nano"
VOCAB_SIZE = 512
SEED = 0
LINES = 4000
CALL_STRETCHES = ('{"name": "', '", "arguments": {"', '": "', '", "', '"}}')
# A word or a sign takes the space before it along; a digit or a newline takes nothing.
PIECES = r"\n|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s"

NAMES = ["Ann", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe"]
NOUNS = ["apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps"]
QUESTIONS = (
    "What is {a} + {b}?",
    "What is {a} - {b}?",
    "What is {a} * {b}?",
    "What is {a} + {b} - {c}?",
    "Use the calculator: {a} + {b}",
    "Use the calculator: {a} - {b}",
    "Use the calculator: {a} * {b}",
    "{name} has {a} {noun} and buys {b} more. How many {noun} now?",
    "{name} has {a} {noun} and gives away {b}. How many are left?",
    "{name} had {a} {noun} and lost {b}. How many are left?",
    "{name} has {a} {noun}. {other} has {b}. How many in all?",
    "{name} has {a} {noun}. {other} has {b}. How many more has {name}?",
    "There are {a} red and {b} blue {noun}. How many in all?",
    "{name} has {a} boxes of {b} {noun} and loses {c}. How many are left?",
    "{a} bags hold {b} {noun} each. How many {noun}?",
    "{name} has {a} {noun}, buys {b} and loses {c}. How many now?",
)
FIXED = (
    "Lake: reach G, avoid O. Answer up, down, left or right.",
    "up",
    "down",
    "left",
    "right",
    "tools: calculator(expression) finish(answer)",
    "calculator",
    "expression",
    "finish",
    "answer",
    "Error: ",
    "The answer is ",
    "####",
    "true false null yes no",
)
COMMON = """
the of and to in is you that it he was for on are as with his they I at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will other about out many then them
these so some her would make like him into time has look two more write go see number no way could people my than
first water been call who its now find long down day did get come made may part over new take only little work know
place year live me back give most very after thing just name good sentence man think say great where help through
much before line right too mean old any same tell follow came want show also around form three small set put end does
another well large must big even such because turn here why ask went men read need land home us move try kind hand
picture again change off play air away point page letter mother answer found study still learn should world game step
state open close left up cell wall key door goal start wrong error tool
"""


def corpus() -> Iterator[str]:
    """Lines in the proportions in which the policy meets them."""
    rng, common = np.random.default_rng(SEED), COMMON.split()
    for _ in range(LINES):
        name, other = (NAMES[i] for i in rng.choice(len(NAMES), 2, replace=False))
        a, b, c = rng.integers(2, 1000, 3)
        question = QUESTIONS[rng.integers(len(QUESTIONS))]
        yield question.format(a=a, b=b, c=c, name=name, other=other, noun=NOUNS[rng.integers(len(NOUNS))])
        yield FIXED[rng.integers(len(FIXED))]
        rows = rng.choice(list("PGO....."), (4, 4))
        yield "\n".join(" ".join(row) for row in rows)
        yield " ".join(rng.choice(common, 4))


def make_tokenizer() -> FastTokenizer:
    """The tokenizer; special tokens come first, then the bytes, what was merged, and a call's stretches."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CALL_STRETCHES),
        special_tokens=[AddedToken(name, special=True, normalized=False) for name in astuple(ChatTokens())],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken(stretch, normalized=False) for stretch in CALL_STRETCHES])
    return FastTokenizer(tokenizer)


def main(directory: Path) -> None:
    tokenizer = make_tokenizer()
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        width=128,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=32,
        mlp_width=512,
        max_positions=1024,
    )
    model = DecoderModel(config)
    policy = Policy("models/nano", model, model.init(SEED), tokenizer, TurnChat(tokenizer))
    save_policy(policy, directory, dtype="float16")
    print(f"{tokenizer.vocab_size} ids, written to {directory}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
