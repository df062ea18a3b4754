"""A finished group comes back from JSON as it was, to the bit."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tunix_core.run.saved_groups import decode_groups, encode_groups
from tunix_core.types import Failure, Group, Message, SampleId, Score, Task, TokenSpan, ToolCall, Trajectory

FLOATS = arrays.arrays(np.float32, 5, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
INTS = arrays.arrays(np.int32, 5)
JSON = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none() | st.booleans(), max_size=3)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left)
        )
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(same, left, right))
    return left == right


@given(logprobs=FLOATS, tokens=INTS, versions=INTS, info=JSON, value=st.none() | st.floats(-1, 1), failed=st.booleans())
def test_every_field_comes_back(logprobs, tokens, versions, info, value, failed):
    failure = Failure("env_raised", "env.step", "it broke", True) if failed else None
    task = Task("t", {"prompt": "2 + 2", "nested": {"a": [1, 2]}}, difficulty=2.5, gold={"answer": 4})
    calls = (ToolCall("add", {"a": 1}, "call-0"), ToolCall("", "{", "call-1", error="not JSON"))
    member = Trajectory(
        SampleId("s", 3, 1, 2), "x/env", task, 2**63 + 5,
        spans=(TokenSpan.forced([1, 2], turn=1), TokenSpan(tokens, True, logprobs, versions, 1, 2, "policy")),
        messages=(Message.of("user", "go"), Message.of("assistant", "", tool_calls=calls)),
        step_rewards=(0.25, 0.1), turns=2, status="failed" if failed else "terminated", stop_reason="finished",
        failure=failure, score=Score(value, {"env": value}, failure, ("odd",)), info=info, timing={"env": 0.125},
    )  # fmt: skip
    group = Group("s", 3, task, (member, member))
    ((found, version),) = decode_groups(json.loads(json.dumps(encode_groups([(group, 7)]))))
    assert version == 7 and same(found, group)


def test_what_has_no_json_form_becomes_plain():
    member = Trajectory(SampleId("s", 0, 0), "e", Task("t"), 0, info={"n": np.float32(0.5), "k": {1: object}})
    ((found, _),) = decode_groups(json.loads(json.dumps(encode_groups([(Group("s", 0, Task("t"), (member,)), 0)]))))
    assert found.trajectories[0].info == {"n": 0.5, "k": {"1": "<class 'object'>"}}
