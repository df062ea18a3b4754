"""A checkpoint's own chat template, appended to as a conversation grows.

At each turn the template is shown the part of the conversation on which what it writes next depends
(`view.in_view`), and of its text only what is new is tokenized; what was sampled stays as it was sampled. So the
work per turn doesn't grow with the turns. A template that looks at more of a conversation is shown all of it.

Where the template, shown the new messages, renders earlier ones otherwise than before — reasoning that it
drops, say — the conversation forks at the last place where the policy was given the word and both agree.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np

from tunix_core.contracts import Past, Rendering
from tunix_core.errors import CheckpointError, ModelError, UsageError, did_you_mean
from tunix_core.models.jinja import ChatTemplate
from tunix_core.models.prompting import Prompting
from tunix_core.models.tokenizer import FastTokenizer
from tunix_core.models.tool_styles import STYLES, ToolStyle, style_of
from tunix_core.models.view import in_view, looks_no_further
from tunix_core.types import Message, TextPart

log = logging.getLogger(__name__)

_MARK = "\ufdd0"  # no character, and never will be one
_MARKS = re.compile(f"{_MARK}({_MARK}?)")
_PROBE = "probe of the closing"


class TemplateChat:
    """A chat format that is a checkpoint's Jinja template (contracts.ChatFormat).

    Special tokens stand where the template writes them. Where a message, a tool's schema or a call's
    argument writes one, it stays plain text.

    Args:
        tokenizer: has the special tokens.
        template: Jinja, as chat templates are written.
        bos, eos: texts of these special tokens; "" when there is none.
        stops: texts of more special tokens that end a turn. The one that the template writes after an
            assistant's message, and `eos`, are always among them.
        tool_style: how calls are written, a name of `tool_styles.STYLES`; None: as the template's family does.
        options: variables for the template, such as `enable_thinking`.
        today: for templates that tell the date; one for all conversations, so that midnight rewrites none.

    Attributes:
        stop_tokens: sampling one of these ends a turn.

    Raises:
        CheckpointError: the template isn't Jinja, or can't render one user and one assistant message.
        UsageError: an unknown special token or tool style.
    """

    def __init__(
        self,
        tokenizer: FastTokenizer,
        template: str,
        *,
        bos: str = "",
        eos: str = "",
        stops: Sequence[str] = (),
        tool_style: str | None = None,
        options: Mapping[str, Any] | None = None,
        today: date | None = None,
    ) -> None:
        self.template, self.bos, self.eos = template, bos, eos
        self.style = _style(tool_style, template)
        self._tokenizer = tokenizer
        self._names = {id: name for name, id in tokenizer.special.items()}
        self._special = re.compile(_any_of(list(tokenizer.special)) or r"(?!)")
        variables = {"bos_token": bos, "eos_token": eos, **(options or {})}
        self._prompting = Prompting(ChatTemplate(template, today or date.today()), self.style, variables)
        self._closing, end = self._probed()
        self.stop_tokens: tuple[int, ...] = tuple(
            tokenizer.special_id(name) for name in dict.fromkeys((end, eos, *stops)) if name
        )
        self._forked = False

    def open(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> np.ndarray:
        """The first messages, ready for the policy to speak: int32 [T]. Raises ModelError when the template
        refuses them."""
        return self._encode(self._render(messages, tools))

    def extend(self, history: np.ndarray, messages: Sequence[Message], past: Past) -> Rendering:
        """Closes the turn that ends `history` if it is open, then renders `messages`, ready for the policy to
        speak again; forks where the template rewrites what was said. Raises ModelError when it refuses them."""
        view = in_view(past, messages)
        if view is not past and self._looks_no_further:
            try:
                if (found := self._extended(history, messages, view)) is not None:
                    return found
            except ModelError:
                log.debug("the template refuses a part of a conversation; it is shown the whole", exc_info=True)
        return self._extended(history, messages, past) or Rendering(
            self._encode(self._render([*past.messages, *messages], past.tools)), 0
        )

    def parse(self, tokens: np.ndarray) -> Message:
        """The assistant message that sampled `tokens` say, up to their stop token. Never raises."""
        ids = np.asarray(tokens, np.int32)
        ends = np.flatnonzero(np.isin(ids, self.stop_tokens))
        said = self._runs(ids[: ends[0]] if len(ends) else ids)
        text, calls = self.style.read("".join(t for t, special in said if not special or t in self.style.marks))
        return Message("assistant", (TextPart(text),) if text else (), calls)

    def say(self, message: Message) -> np.ndarray:
        """The ids a policy samples to say `message`, its stop token included: int32 [T]. As the template writes an
        assistant's turn; word for word where it leaves out what is said. Raises ModelError when it refuses the message.
        """
        asked = [Message.of("user", "?")]
        turn = _after(self._render([*asked, message], (), ready=False), self._render(asked, ()))
        written = self._guard(message.text)
        if turn is None or _squashed(written) not in _squashed(turn):
            turn = written + self._guard(self.style.write(message.tool_calls)) + self._closing
        ends = self._ends(turn)
        return self._encode(turn[: ends[-1].end()] if ends else turn.removesuffix(self._closing) + self.eos)

    def text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), ready: bool = True) -> str:
        """The conversation as the template writes it; `ready`: with the assistant's turn begun. Raises ModelError."""
        return self._prompting.render(messages, tools, str, ready)

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], ready: bool = True) -> str:
        return self._prompting.render(messages, tools, self._guard, ready)

    @cached_property
    def _looks_no_further(self) -> bool:
        found = looks_no_further(self.text)
        if not found:
            log.warning("the chat template looks at whole conversations: rendering grows with their turns (said once)")
        return found

    def _extended(self, history: np.ndarray, messages: Sequence[Message], past: Past) -> Rendering | None:
        """As `extend`, by what `past` shows; None when the template rewrites all of that."""
        whole = self._render([*past.messages, *messages], past.tools)
        new = self._appended(history, past, whole)
        if new is not None:
            return Rendering(self._encode(new), len(history))
        if not self._forked:
            self._forked = True
            log.warning("the chat template rewrites earlier messages: such conversations fork (said once)")
        agreed = self._agreed(history, past, whole)
        return agreed and Rendering(self._encode(agreed[0]), agreed[1])

    def _probed(self) -> tuple[str, str]:
        """What the template writes after an assistant's message, up to its first special token; and that token."""
        try:
            whole = self._render([Message.of("user", "?"), Message.of("assistant", _PROBE)], (), ready=False)
        except ModelError as error:
            raise CheckpointError(f"{error}. Expected a template of user and assistant messages.") from error
        before, found, closing = whole.rpartition(_PROBE)
        if not found:
            raise CheckpointError(f"the chat template leaves out what the assistant says; it renders {before!r:.200}")
        end = self._special.search(closing)
        return (closing[: end.end()], end[0]) if end else (closing, "")

    def _appended(self, history: np.ndarray, past: Past, whole: str) -> str | None:
        """What the template adds to the history, as text; None when it renders the history otherwise."""
        before, start = past.marks[-1]
        prompt = self._render(past.messages[:before], past.tools)
        said = self._runs(history[start:])
        stop = said.pop()[0] if len(history) and int(history[-1]) in self.stop_tokens else ""
        written = "".join(text if special else self._guard(text) for text, special in said)
        rest, closing = _after(whole, prompt + written), self._closing
        if rest is None or not rest.startswith(closing):  # not word for word
            closing, rest = self._in_its_own_form(past, prompt, whole)
        return rest[len(closing) :] if rest is not None and stop and closing.endswith(stop) else rest

    def _in_its_own_form(self, past: Past, prompt: str, whole: str) -> tuple[str, str | None]:
        """The closing of the last turn, and the text from it on, when the template writes that turn otherwise
        (spaces, the JSON of a call) but keeps what it says, now and before the new messages."""
        then = self._render(past.messages, past.tools, ready=False)
        turn, new = _after(then, prompt), _after(whole, then)
        if turn is None or new is None or _squashed(self._guard(past.messages[-1].text)) not in _squashed(turn):
            return "", None
        ends = self._ends(turn)
        if not ends:
            return self._closing, self._closing + new
        return ends[-1][0], turn[ends[-1].start() :] + new

    def _ends(self, text: str) -> list[re.Match[str]]:
        """Where tokens that end a turn stand."""
        stops = {self._names[id] for id in self.stop_tokens}
        return [found for found in self._special.finditer(text) if found[0] in stops]

    def _agreed(self, history: np.ndarray, past: Past, whole: str) -> tuple[str, int] | None:
        """The rest of `whole` from the last place where the policy was given the word and nothing before it is
        rewritten, and how many ids stand there."""

        def rest(mark: tuple[int, int]) -> tuple[str, int] | None:
            before, start = mark
            prompt = self._render(past.messages[:before], past.tools)
            if (new := _after(whole, prompt)) is not None:
                return new, start
            bare = self._render(past.messages[:before], past.tools, ready=False)
            opening = self._encode(_after(prompt, bare) or "")
            new, start = _after(whole, bare), start - len(opening)
            return (new, start) if new and np.array_equal(history[start:][: len(opening)], opening) else None

        agreeing = bisect_left(
            past.marks, True, key=lambda mark: rest(mark) is None
        )  # a place after a rewriting is one
        return rest(past.marks[agreeing - 1]) if agreeing else None

    def _encode(self, text: str) -> np.ndarray:
        """int32 [T]; special tokens where they aren't guarded."""
        ids, place = [], 0
        for found in self._special.finditer(text):
            ids += [self._plain(text[place : found.start()]), [self._tokenizer.special[found[0]]]]
            place = found.end()
        return np.concatenate([*ids, self._plain(text[place:])]).astype(np.int32)

    def _plain(self, text: str) -> np.ndarray:
        return self._tokenizer.encode(_MARKS.sub(r"\1", text)) if text else np.zeros(0, np.int32)

    def _guard(self, text: str) -> str:
        """The text with every special token in it broken by marks, and the marks in it doubled."""
        return self._special.sub(lambda found: _MARK.join(found[0]), text.replace(_MARK, _MARK * 2))

    def _runs(self, ids: np.ndarray) -> list[tuple[str, bool]]:
        """The ids as texts, each with whether it is a special token."""
        runs, place = [], 0
        for at in np.flatnonzero(np.isin(ids, list(self._names))):
            runs += [(self._tokenizer.decode(ids[place:at]), False), (self._names[int(ids[at])], True)]
            place = at + 1
        last = self._tokenizer.decode(ids[place:])
        return [*runs, (last, False)] if place < len(ids) else runs


def _style(name: str | None, template: str) -> ToolStyle:
    if name is None:
        return style_of(template)
    if name not in STYLES:
        raise UsageError(f"unknown tool style {name!r}; known: {', '.join(STYLES)}.{did_you_mean(name, tuple(STYLES))}")
    return STYLES[name]


def _any_of(words: Sequence[str]) -> str:
    """A pattern of the words, the longest first, that looks at each character once: some tokenizers have thousands."""
    tails: dict[str, list[str]] = {}
    for word in filter(None, words):
        tails.setdefault(word[0], []).append(word[1:])
    pattern = "|".join(re.escape(first) + _any_of(rest) for first, rest in tails.items())
    return pattern and (f"(?:{pattern})?" if "" in words else f"(?:{pattern})")


def _after(text: str, beginning: str) -> str | None:
    return text[len(beginning) :] if text.startswith(beginning) else None


def _squashed(text: str) -> str:
    return "".join(text.split())
