"""What crosses between the trainer and an environment elsewhere: frames of JSON.

A frame is four bytes of length, big-endian, and that many bytes of UTF-8 JSON, an object; at most
`FRAME_BYTES`, in both directions. One side asks, the other answers, one question at a time, over any stream:

    {"op": "load", "form", "module", "attr", "file"}         -> {"form", "value": null}     once, at first
    {"op": "open", "form", "module", "attr", "file", "task", "max_steps", "options"} -> {"form", "value": null}
    {"op": "reset", "seed"}  -> {"value": opening}
    {"op": "step", "action"} -> {"value": step result}
    {"op": "close"}          -> {"value": null}          each may instead be answered by {"error": failure}

The two sides may have tunix-core from different places: "form" tells `FORM`, in the questions "load" and "open", and
in their answers, of which one is {"form", "error": failure} where it fails. Each side looks at the other's before it
makes anything of the rest. Whoever changes what is said here raises `FORM`, and leaves frames and "form" as they are.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from tunix_core.envs.base import broken
from tunix_core.types import Failure, Message, Opening, StepResult, TextPart, ToolCall

FORM = 2
FRAME_BYTES = 64 << 20  # of a frame's JSON: far above any episode's, far below what a machine has
_LENGTH = struct.Struct(">I")
_NO_FRAME = "what came over the stream between the trainer and an environment's process is no frame"
_REMEDY = "Nothing but tunix-core may write there: look for what writes to file descriptors that it did not open"


def to_frame(value: Mapping[str, Any]) -> bytes:
    """`value` as a frame. Raises EnvError, kind "env_contract", when it has no JSON form or is too large."""
    try:
        body = json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise broken(
            f"what crosses between the trainer and an environment's process must survive JSON: {error}. Give texts, "
            "numbers, lists and dicts with texts as keys, a few levels deep"
        ) from error
    if len(body) > FRAME_BYTES:
        raise broken(
            f"what crosses between the trainer and an environment's process may take {FRAME_BYTES:,} bytes as JSON, "
            f"not {len(body):,}. Give less at a time, or let the environment read it from a file"
        )
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next frame.

    Raises:
        IncompleteReadError: the end of the stream.
        EnvError: kind "env_contract", for what is no frame; nothing after it can be made out either.
    """
    head = await reader.readexactly(_LENGTH.size)
    return _decoded(await reader.readexactly(_size(head)))


def receive_frame(sock: socket.socket) -> dict[str, Any] | None:
    """The next frame of a blocking socket, or None at its end. Raises EnvError as `read_frame`."""
    head = _receive(sock, _LENGTH.size)
    body = None if head is None else _receive(sock, _size(head))
    return None if body is None else _decoded(body)


def _size(head: bytes) -> int:
    (size,) = _LENGTH.unpack(head)
    if size > FRAME_BYTES:
        raise broken(f"{_NO_FRAME}: one said to have {size:,} bytes, where {FRAME_BYTES:,} are allowed. {_REMEDY}")
    return size


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise broken(f"{_NO_FRAME}: {error}; expected JSON. {_REMEDY}") from error
    if not isinstance(value, dict):
        raise broken(f"{_NO_FRAME}: {value!r:.200}; expected a JSON object. {_REMEDY}")
    return value


def _receive(sock: socket.socket, size: int) -> bytes | None:
    chunks: list[bytes] = []
    while size:
        chunk = sock.recv(min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def check_form(said: Mapping[str, Any], who: str, remedy: str) -> None:
    """Looks whether both sides speak the same.

    Args:
        said: the question "open", or its answer.
        who: the other side.
        remedy: what to do where it speaks another form.

    Raises:
        EnvError: kind "env_contract", for another form, or none.
    """
    if said.get("form") != FORM:
        found = f"form {said['form']!r:.20}" if "form" in said else "no form at all, as an older tunix-core does"
        raise broken(f"{who} has another tunix-core: its frames tell {found}; expected form {FORM}. {remedy}")


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """A failure; an environment's own errors may hold what is not quite a text or a truth value."""
    texts = {name: str(getattr(failure, name)) for name in ("kind", "boundary", "message")}
    return {**texts, "retry": bool(failure.retry)}


def message_to_json(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": [part.text for part in message.content],
        "tool_calls": [_call_to_json(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


def _call_to_json(call: ToolCall) -> dict[str, Any]:
    arguments = dict(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments
    return {"name": call.name, "arguments": arguments, "id": call.id, "error": call.error}


def message_from_json(value: Mapping[str, Any]) -> Message:
    return Message(
        role=value["role"],
        content=tuple(TextPart(text) for text in value["content"]),
        tool_calls=tuple(ToolCall(**call) for call in value["tool_calls"]),
        tool_call_id=value["tool_call_id"],
        name=value["name"],
    )


def opening_to_json(opening: Opening) -> dict[str, Any]:
    messages = [message_to_json(message) for message in opening.messages]
    return {"messages": messages, "tools": list(opening.tools), "info": opening.info}


def opening_from_json(value: Mapping[str, Any]) -> Opening:
    return Opening(tuple(map(message_from_json, value["messages"])), tuple(value["tools"]), value["info"])


def result_to_json(result: StepResult) -> dict[str, Any]:
    return {
        "observation": [message_to_json(message) for message in result.observation],
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "info": result.info,
    }


def result_from_json(value: Mapping[str, Any]) -> StepResult:
    return StepResult(**{**value, "observation": tuple(map(message_from_json, value["observation"]))})
