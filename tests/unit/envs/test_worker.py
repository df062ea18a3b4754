"""The worker's side of the stream: every question has an answer that is a frame."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunix_core.envs import wire
from tunix_core.envs.wire import FORM, message_to_json
from tunix_core.envs.worker import Server
from tunix_core.errors import EnvError
from tunix_core.types import Message, Task

SAMPLES = str(Path(__file__).with_name("sample_envs.py"))
STEP = {"op": "step", "action": message_to_json(Message.of("assistant", "hello"))}


@pytest.fixture
def server() -> Iterator[Server]:
    with asyncio.Runner() as runner:
        yield Server(runner)


def ask(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    frame = server.answer(request)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return json.loads(frame[4:])


def opening(**options: Any) -> dict[str, Any]:
    cls = {"module": "tunix_sample_envs", "attr": "Probe", "file": SAMPLES}
    return {"op": "open", "form": FORM, **cls, "task": Task("t").to_json(), "max_steps": 3, "options": options}


@pytest.mark.parametrize("do", ["bytes", "set", "deep"])
def test_what_no_frame_can_hold_is_an_answer_and_the_next_question_is_served(do: str, server: Server) -> None:
    assert ask(server, opening(do=do)) == {"form": FORM, "value": None}
    failure = ask(server, STEP)["error"]
    assert (failure["kind"], failure["boundary"], failure["retry"]) == ("env_contract", "env.step", False)
    assert "must survive JSON" in failure["message"]
    assert ask(server, {"op": "close"}) == {"value": None}


def test_an_answer_too_large_for_a_frame_names_its_size(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(server, opening())
    monkeypatch.setattr(wire, "FRAME_BYTES", 1000)
    action = message_to_json(Message.of("assistant", "x" * 2000))
    failure = ask(server, {"op": "step", "action": action})["error"]
    assert (failure["kind"], failure["retry"]) == ("env_contract", False)
    assert "may take 1,000 bytes as JSON, not 4," in failure["message"]


def test_an_environments_own_error_may_hold_what_is_no_json(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(server, opening(do="own"))
    module = sys.modules["tunix_sample_envs"]

    def fail() -> Any:
        raise EnvError("odd", kind=np.str_("odd_kind"), retry=np.bool_(True))  # type: ignore[arg-type]

    monkeypatch.setitem(module.MISDEEDS, "own", fail)
    failure = ask(server, STEP)["error"]
    assert failure == {"kind": "odd_kind", "boundary": "env.step", "message": "odd", "retry": True}


@pytest.mark.parametrize("form", [None, FORM + 1, "absent"])
def test_a_trainer_of_another_form_is_refused_before_anything_is_built(form: Any, server: Server) -> None:
    request = {**opening(do="raise", where="init"), "form": form, "options": "of another shape"}
    if form == "absent":
        del request["form"]
    answer = ask(server, request)
    assert answer["form"] == FORM
    assert (answer["error"]["kind"], answer["error"]["retry"]) == ("env_contract", False)
    assert answer["error"]["message"].startswith("the trainer has another tunix-core: its frames tell ")
    assert f"expected form {FORM}. Install one version of tunix-core for both" in answer["error"]["message"]


def test_an_environment_that_can_not_be_built_tells_the_form_too(server: Server) -> None:
    answer = ask(server, opening(do="raise", where="init"))
    assert answer["form"] == FORM
    assert re.fullmatch(r"ValueError: as asked \(sample_envs\.py:\d+\)", answer["error"]["message"])


def test_a_process_that_is_sent_no_frame_says_so_and_goes() -> None:
    ours, theirs = socket.socketpair()
    code = f"from tunix_core.envs.worker import main; main({theirs.fileno()})"
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as worker,
    ):
        theirs.close()
        ours.sendall(b"\xff\xff\xff\xff")
        said = worker.communicate(timeout=60)[1]
    assert "said to have 4,294,967,295 bytes, where 67,108,864 are allowed" in said
    assert worker.returncode == -signal.SIGKILL


def test_all_calls_of_an_environment_are_made_in_one_task_and_of_the_next_in_another(server: Server) -> None:
    session = opening() | {"attr": "Session"}
    for _ in range(2):
        assert "value" in ask(server, session)
        opened = ask(server, {"op": "reset", "seed": 1})["value"]
        assert "nobody" in json.dumps(opened), "what an environment set is not the next one's"
        for _ in range(2):
            assert "ada" in json.dumps(ask(server, STEP)["value"])
        assert ask(server, {"op": "close"}) == {"value": None}
