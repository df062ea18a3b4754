"""The work of a turn doesn't grow with a conversation: counted, not timed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tunix_core.models.jinja import ChatTemplate
from tunix_core.models.template import TemplateChat
from tunix_core.rollout import Conversation
from tunix_core.types import Message

sys.path.insert(0, str(Path(__file__).parent))
from chats import CHATS, FAMILIES, LOOK, TOKENIZER, completion, every_family, sampled, shown


@every_family
def test_the_text_tokenized_in_a_turn_does_not_grow_with_the_turns(family: str) -> None:
    chat = CHATS[family]
    talk = Conversation(chat, [Message.of("system", "Be brief."), Message.of("user", "start")], [LOOK])
    counts = []
    for _ in range(40):
        talk.hear(completion(sampled("<think>\n\n</think>\n\nup" if family == "qwen3" else "up", FAMILIES[family][2])))
        before = TOKENIZER.characters
        talk.say([Message.of("tool", "a dark room")])
        counts.append(TOKENIZER.characters - before)
    if family == "qwen3":  # it drops an empty reasoning block at once: each turn forks, where the last one began
        assert talk.branch == 40
    assert len(set(counts[1:])) == 1 and counts[-1] < 150
    assert shown(talk.tokens).count("Be brief.") == 1


class Work:
    """Counts the messages that Jinja is given, and the characters it writes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.messages = self.characters = 0
        rendered = ChatTemplate.render

        def render(template: ChatTemplate, **variables) -> str:
            text = rendered(template, **variables)
            self.messages += len(variables["messages"])
            self.characters += len(text)
            return text

        patch.setattr(ChatTemplate, "render", render)


HELD = {  # what the policy says at each turn, and what it hears
    "tools": ("up", [Message.of("tool", "a dark room")]),
    "questions": ("up", [Message.of("user", "and where?")]),
    "nothing": ("<think>\nhm\n</think>\n\nup", []),
    "reasoning": ("<think>\nhm\n</think>\n\nup", [Message.of("user", "and where?")]),
    "reasoning with tools": ("<think>\nhm\n</think>\n\nup", [Message.of("tool", "a dark room")]),
}


@every_family
@pytest.mark.parametrize("held", HELD)
def test_the_work_of_a_turn_does_not_grow_with_the_turns(family: str, held: str, monkeypatch) -> None:
    chat, (said, heard) = CHATS[family], HELD[held]
    talk = Conversation(chat, [Message.of("system", "Be brief."), Message.of("user", "start")], [LOOK])
    work, done = Work(monkeypatch), []
    for _ in range(110):
        talk.hear(completion(sampled(said, FAMILIES[family][2])))
        before = work.messages, work.characters, TOKENIZER.characters
        talk.say(heard)
        done.append((work.messages - before[0], work.characters - before[1], TOKENIZER.characters - before[2]))
    assert len(set(done[4:])) == 1
    assert done[-1][0] <= 45
    assert len(talk.messages) == 2 + 110 * (1 + len(heard))
    np.testing.assert_array_equal(talk.tokens, chat.open(talk.messages, [LOOK]))


def test_reasoning_dropped_after_many_turns_is_looked_for_as_far_back_as_it_goes(monkeypatch) -> None:
    chat = CHATS["qwen3"]
    talk = Conversation(chat, [Message.of("user", "start")], [LOOK])
    for _ in range(30):
        talk.hear(completion(sampled("<think>\nhm\n</think>\n\nup", "<|im_end|>")))
        talk.say([Message.of("tool", "a dark room")])
    assert talk.branch == 0
    talk.hear(completion(sampled("up", "<|im_end|>")))
    work = Work(monkeypatch)
    talk.say([Message.of("user", "and?")])
    assert talk.branch == 1 and [span.turn for span in talk.spans if span.branch == 1] == [31, 31]
    assert work.messages < 62 * 20  # a few renders of what was said since the question, not one a turn
    np.testing.assert_array_equal(talk.tokens, chat.open(talk.messages, [LOOK]))


@pytest.mark.parametrize("looks", ["loop.index0", "'old ' if loop.revindex0 > 6", "'near ' if loop.revindex0 == 5"])
def test_a_template_that_looks_at_the_whole_is_shown_the_whole_which_is_said_once(looks: str, caplog) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} "
        f"{{{{ ({looks}) if m.role == 'user' }}}}{{{{ m.content }}}}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
    )
    chat = TemplateChat(TOKENIZER, template)
    talk = Conversation(chat, [Message.of("user", "start")])
    for turn in range(12):
        talk.hear(completion(sampled(f"up {turn}", "<|im_end|>")))
        talk.say([Message.of("user", "and?")])
        assert shown(talk.tokens) == chat.text(talk.messages)
    assert [record.message for record in caplog.records if "looks at whole conversations" in record.message] == [
        "the chat template looks at whole conversations: rendering grows with their turns (said once)"
    ]
