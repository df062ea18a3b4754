"""What an environment shows, as messages: one function, `to_messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunix_core.envs.base import broken
from tunix_core.types import Message, Role

_TEXT_KEYS = ("messages", "prompts", "prompt", "question", "observation")
_ROLES = ("system", "user", "assistant", "tool")


def to_messages(observation: Any, role: Role = "user") -> tuple[Message, ...]:
    """An observation as messages for the policy.

    Args:
        observation: text, a Message, `{"role", "content"}`, a sequence of these, None, or a dict that
            holds one of them under "messages", "prompts", "prompt", "question" or "observation";
            `{"tool_outputs": {call id: text}}` becomes one tool message each.
        role: of what says no role itself.

    Raises:
        EnvError: kind "env_contract" for anything else.
    """
    if observation is None:
        return ()
    if isinstance(observation, Message):
        return (observation,)
    if isinstance(observation, str):
        return (Message.of(role, str(observation)),)
    if isinstance(observation, Mapping):
        return _from_mapping(observation, role)
    if isinstance(observation, Sequence) and not isinstance(observation, bytes):
        return tuple(message for item in observation for message in to_messages(item, role))
    raise broken(
        f"an observation must be text, a Message, a sequence of Messages, a dict or None, not "
        f"{type(observation).__name__}: {observation!r:.200}"
    )


def _from_mapping(observation: Mapping[str, Any], role: Role) -> tuple[Message, ...]:
    if not observation:
        return ()
    if observation.get("role") in _ROLES and isinstance(observation.get("content"), str):
        return (Message.of(observation["role"], observation["content"]),)
    if isinstance(outputs := observation.get("tool_outputs"), Mapping):
        return tuple(Message.of("tool", str(text), tool_call_id=str(key)) for key, text in outputs.items())
    for key in _TEXT_KEYS:
        if key in observation:
            return to_messages(observation[key], role)
    raise broken(
        f"a dict as observation must have one of {', '.join(map(repr, _TEXT_KEYS))} or 'tool_outputs'; "
        f"this one has {sorted(map(str, observation))}"
    )
