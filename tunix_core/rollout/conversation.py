"""A conversation as token ids: only appended to, or forked where a chat format rewrites history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tunix_core.contracts import ChatFormat, Completion, Past
from tunix_core.types import Message, TokenSpan


class Conversation:
    """Keeps what was said (messages) and the ids that said it (spans), in step.

    Args:
        chat: how messages become ids.
        messages: the first messages.
        tools: schemas of the tools the policy may call.
    """

    def __init__(
        self, chat: ChatFormat, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] = ()
    ) -> None:
        self._chat = chat
        self.messages = list(messages)
        self.turn = 0
        self.branch = 0
        self.sampled_tokens = 0
        self.spans: list[TokenSpan] = []
        self._tools = tuple(tools)
        self._ids: list[np.ndarray] = []  # of the current branch, in pieces
        self._append(TokenSpan.forced(chat.open(messages, tools)))
        self._marks = [(len(self.messages), len(self.tokens))]

    @property
    def tokens(self) -> np.ndarray:
        """The current branch's ids, int32 [T]: the next prompt."""
        if len(self._ids) > 1:
            self._ids = [np.concatenate(self._ids)]
        return self._ids[0]

    def hear(self, completion: Completion) -> Message:
        """Takes what the policy sampled, as it is; gives the message it says."""
        span = TokenSpan(completion.tokens, True, completion.logprobs, completion.versions, self.turn, self.branch)
        self._append(span)
        self.sampled_tokens += completion.tokens.size
        message = self._chat.parse(completion.tokens)
        self.messages.append(message)
        self.turn += 1
        return message

    def say(self, messages: Sequence[Message]) -> None:
        """Appends the environment's messages, ready for the policy to speak again."""
        history = self.tokens
        past = Past(tuple(self.messages), self._tools, tuple(self._marks))
        rendering = self._chat.extend(history, messages, past)
        if rendering.keep < len(history):
            self.branch += 1
            self._ids = []
            self._marks = [mark for mark in self._marks if mark[1] <= rendering.keep]
            self._append(TokenSpan.forced(history[: rendering.keep], turn=self.turn, branch=self.branch))
        self._append(TokenSpan.forced(rendering.tokens, turn=self.turn, branch=self.branch))
        self.messages.extend(messages)
        self._marks.append((len(self.messages), rendering.keep + len(rendering.tokens)))

    def _append(self, span: TokenSpan) -> None:
        if span.tokens.size:
            self.spans.append(span)
            self._ids.append(span.tokens)
