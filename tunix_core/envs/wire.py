"""What crosses between the trainer and an environment elsewhere: frames of JSON.

A frame is four bytes of length, big-endian, and that many bytes of UTF-8 JSON. One side asks, the
other answers, one question at a time, over any stream:

    {"op": "open", "module", "attr", "file", "task", "max_steps", "options"} -> {"value": null}
    {"op": "reset", "seed"}  -> {"value": opening}
    {"op": "step", "action"} -> {"value": step result}
    {"op": "close"}          -> {"value": null}          each may instead be answered by {"error": failure}
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tunix_core.types import Message, Opening, StepResult, TextPart, ToolCall

_LENGTH = struct.Struct(">I")


def to_frame(value: Mapping[str, Any]) -> bytes:
    body = json.dumps(value).encode()
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next frame. Raises IncompleteReadError at the end of the stream."""
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return json.loads(await reader.readexactly(size))


def receive_frame(sock: socket.socket) -> dict[str, Any] | None:
    """The next frame of a blocking socket, or None at its end."""
    head = _receive(sock, _LENGTH.size)
    body = _receive(sock, _LENGTH.unpack(head)[0]) if head else None
    return json.loads(body) if body else None


def _receive(sock: socket.socket, size: int) -> bytes | None:
    chunks: list[bytes] = []
    while size:
        chunk = sock.recv(min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def message_to_json(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": [part.text for part in message.content],
        "tool_calls": [{**asdict(call), "arguments": _arguments(call)} for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


def _arguments(call: ToolCall) -> Any:
    return call.arguments if isinstance(call.arguments, str) else dict(call.arguments)


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
