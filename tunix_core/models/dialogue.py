"""What a checkpoint says about conversations, and the chat format made of it."""

from __future__ import annotations

from dataclasses import dataclass

from tunix_core.contracts import ChatFormat
from tunix_core.models.template import TemplateChat
from tunix_core.models.tokenizer import FastTokenizer

# For a base model, which has no template: the roles by name, line by line.
PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class ChatFacts:
    """What a checkpoint says of its conversations.

    Attributes:
        template: Jinja, or None for a model that has none.
        bos: the text of the token a text begins with, or None.
        eos: the texts of the tokens that end a turn.
    """

    template: str | None = None
    bos: str | None = None
    eos: tuple[str, ...] = ()


def make_chat(tokenizer: FastTokenizer, facts: ChatFacts) -> ChatFormat:
    """The checkpoint's own format; by roles and lines when it has none. Raises CheckpointError as TemplateChat."""
    eos = tuple(name for name in facts.eos if name in tokenizer.special)
    bos = facts.bos if facts.bos in tokenizer.special else None
    return TemplateChat(tokenizer, facts.template or PLAIN, bos=bos or "", eos=eos[0] if eos else "", stops=eos[1:])


def facts_of(chat: ChatFormat, tokenizer: FastTokenizer) -> ChatFacts:
    """What `make_chat` makes `chat` of; of another format, the tokens that end a turn."""
    names = {id: name for name, id in tokenizer.special.items()}
    if not isinstance(chat, TemplateChat):
        return ChatFacts(eos=tuple(names[id] for id in chat.stop_tokens))
    template = None if chat.template == PLAIN else chat.template
    stops = [names[id] for id in chat.stop_tokens]
    return ChatFacts(template, chat.bos or None, tuple(dict.fromkeys([*([chat.eos] if chat.eos else []), *stops])))
