"""Frames: what they hold, and what is none."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tunix_core.envs import wire
from tunix_core.envs.wire import message_from_json, message_to_json, read_frame, receive_frame, to_frame
from tunix_core.errors import EnvError
from tunix_core.types import Message, TextPart, ToolCall


def read(sent: bytes) -> Any:
    """What the trainer makes of `sent`, while the stream stays open."""

    async def main() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        return await asyncio.wait_for(read_frame(reader), 10)

    return asyncio.run(main())


def receive(sent: bytes) -> Any:
    """What a worker makes of `sent`, while the stream stays open."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)
        ours.sendall(sent)
        return receive_frame(theirs)


BOTH = pytest.mark.parametrize("taken", [read, receive])


@BOTH
def test_a_frame_comes_as_it_was_sent(taken: Callable[[bytes], Any]) -> None:
    value = {"a": [1, 2.5, None, True], "b": {"c": "ä\udc80"}}
    assert taken(to_frame(value)) == value
    assert math.isnan(taken(to_frame({"nan": math.nan}))["nan"])


@BOTH
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"\xff\xff\xff\xff", "4,294,967,295 bytes, where 67,108,864 are allowed"),
        (b"\x04\x00\x00\x01", "67,108,865 bytes, where 67,108,864 are allowed"),
        (b"\x00\x00\x00\x00", "expected JSON"),
        (b"\x00\x00\x00\x04null", "None; expected a JSON object"),
        (b"\x00\x01\x86\xa0" + b"[" * 100_000, "recursion depth exceeded.*expected JSON"),
    ],
)
def test_what_is_no_frame_breaks_the_contract(taken: Callable[[bytes], Any], sent: bytes, told: str) -> None:
    with pytest.raises(EnvError, match=told) as caught:
        taken(sent)
    assert (caught.value.kind, caught.value.retry) == ("env_contract", False)


@BOTH
def test_the_bound_itself_is_allowed(taken: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAME_BYTES", len('{"a": "x"}'))
    assert taken(to_frame({"a": "x"})) == {"a": "x"}
    with pytest.raises(EnvError, match="may take 10 bytes as JSON, not 11"):
        to_frame({"a": "xy"})


def test_the_end_of_the_stream_is_no_frame_to_a_worker() -> None:
    for sent in (b"", b"\x00\x00", b"\x00\x00\x00\x04nu"):
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.sendall(sent)
            assert receive_frame(theirs) is None


@pytest.mark.parametrize("value", [{1, 2}, b"raw", {(1, 2): 3}, object()])
def test_what_has_no_json_form_can_not_be_sent(value: Any) -> None:
    with pytest.raises(EnvError, match="must survive JSON") as caught:
        to_frame({"value": value})
    assert (caught.value.kind, caught.value.retry) == ("env_contract", False)


def test_what_holds_itself_or_is_too_deep_can_not_be_sent() -> None:
    round_trip: list[Any] = []
    round_trip.append(round_trip)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (round_trip, deep):
        with pytest.raises(EnvError, match="must survive JSON") as caught:
            to_frame({"value": value})
        assert caught.value.kind == "env_contract"


def test_a_message_comes_as_it_was_sent() -> None:
    calls = (ToolCall("add", {"a": [1]}, "c1"), ToolCall("", "{", "c2", "no JSON"))
    message = Message("tool", (TextPart("a"), TextPart("b")), calls, "c0", "name")
    assert message_from_json(message_to_json(message)) == message
