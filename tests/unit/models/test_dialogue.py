"""The chat format of a checkpoint, and of one that has none."""

from __future__ import annotations

import numpy as np

from tunix_core.contracts import Past
from tunix_core.models import FastTokenizer, TurnChat
from tunix_core.models.dialogue import ChatFacts, facts_of, make_chat
from tunix_core.types import Message

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_base_model_sees_roles_and_lines(tokenizer: FastTokenizer) -> None:
    chat = make_chat(tokenizer, ChatFacts(None, "<|system|>", ("<|end|>",)))
    opening = [Message.of("system", "Be brief."), Message.of("user", "2 + 3?")]
    history = chat.open(opening)
    assert int(history[0]) == tokenizer.special["<|system|>"]
    assert tokenizer.decode(history) == "system: Be brief.\nuser: 2 + 3?\nassistant:"
    said = Message.of("assistant", " 5")
    spoke = len(history)
    history = np.array([*history, *tokenizer.encode(said.text), tokenizer.special["<|end|>"]])
    more = chat.extend(history, [Message.of("user", "4 + 4?")], Past((*opening, said), (), ((2, spoke),)))
    assert more.keep == len(history)
    assert "user: 4 + 4?\nassistant:" in tokenizer.decode(more.tokens)


def test_facts_come_back_from_the_format_made_of_them(tokenizer: FastTokenizer) -> None:
    for template in (TEMPLATE, None):
        facts = ChatFacts(template, "<|system|>", ("<|end|>", "<|pad|>"))
        assert facts_of(make_chat(tokenizer, facts), tokenizer) == facts


def test_tokens_that_the_tokenizer_lacks_are_left_out(tokenizer: FastTokenizer) -> None:
    chat = make_chat(tokenizer, ChatFacts(TEMPLATE, "<s>", ("</s>", "<|pad|>")))
    assert facts_of(chat, tokenizer) == ChatFacts(TEMPLATE, None, ("<|pad|>", "<|end|>"))


def test_our_own_format_says_how_a_turn_ends(tokenizer: FastTokenizer) -> None:
    assert facts_of(TurnChat(tokenizer), tokenizer) == ChatFacts(eos=("<|end|>",))
