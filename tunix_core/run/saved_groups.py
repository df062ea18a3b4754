"""Finished groups as JSON, for checkpoints: every number comes back to the bit."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from tunix_core.types import Failure, Group, Message, SampleId, Score, Task, TextPart, TokenSpan, ToolCall, Trajectory

Saved = Mapping[str, Any]


def encode_groups(groups: Sequence[tuple[Group, int]]) -> list[dict[str, Any]]:
    """Groups, each with the version it was admitted at, as plain values; what has no JSON form becomes its text."""
    return [_encode(group, version) for group, version in groups]


def decode_groups(saved: Sequence[Saved]) -> list[tuple[Group, int]]:
    """What `encode_groups` was given."""
    return [(_group(entry), entry["version"]) for entry in saved]


def _encode(group: Group, version: int) -> dict[str, Any]:
    members = [{name: value for name, value in _plain(t).items() if name != "task"} for t in group.trajectories]
    task = _plain(group.task)
    return {"suite": group.suite, "index": group.index, "version": version, "task": task, "trajectories": members}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "data": base64.b64encode(value.tobytes()).decode()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def _group(entry: Saved) -> Group:
    task = Task(**entry["task"])
    members = tuple(_trajectory(member, task) for member in entry["trajectories"])
    return Group(entry["suite"], entry["index"], task, members)


def _trajectory(entry: Saved, task: Task) -> Trajectory:
    made = {
        "id": SampleId(**entry["id"]),
        "task": task,
        "spans": tuple(_span(span) for span in entry["spans"]),
        "messages": tuple(_message(message) for message in entry["messages"]),
        "step_rewards": tuple(entry["step_rewards"]),
        "failure": _failure(entry["failure"]),
        "score": _score(entry["score"]),
    }
    return Trajectory(**{**entry, **made})


def _span(entry: Saved) -> TokenSpan:
    arrays = {name: _array(entry[name]) for name in ("tokens", "logprobs", "versions")}
    return TokenSpan(**{**entry, **arrays})


def _array(entry: Saved) -> np.ndarray:
    return np.frombuffer(base64.b64decode(entry["data"]), np.dtype(entry["dtype"])).copy()


def _message(entry: Saved) -> Message:
    made = {
        "content": tuple(TextPart(**part) for part in entry["content"]),
        "tool_calls": tuple(ToolCall(**call) for call in entry["tool_calls"]),
    }
    return Message(**{**entry, **made})


def _failure(entry: Saved | None) -> Failure | None:
    return None if entry is None else Failure(**entry)


def _score(entry: Saved | None) -> Score | None:
    if entry is None:
        return None
    return Score(**{**entry, "failure": _failure(entry["failure"]), "flags": tuple(entry["flags"])})
