from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from repository_fake import Repository
from rows_for_tests import GOLD, OWN
from tunix_env_swebench import grading
from tunix_env_swebench.env import SweBenchEnv
from tunix_env_swebench.tasks import solutions

from tunix_core import Message, StepResult, Task, ToolCall
from tunix_core.sandboxes import ExecResult, Sandbox, SandboxError
from tunix_core.testing.fake_sandboxes import FakeSandboxes
from tunix_core.tools import SandboxTool, Tool, tool

TASK = Task("owner__it-1", {"repo": "owner/it"}, gold=OWN)
SUBMIT = Message("assistant", tool_calls=(ToolCall("submit", {}, "1"),))
CHANGED = ExecResult(0, GOLD.encode())


def bash(sandbox: Sandbox, *, timeout_s: float = 60.0) -> Tool:
    async def bash(command: str) -> str:
        """Runs a command."""
        return (await sandbox.exec(("echo", command), timeout_s=timeout_s)).stdout.decode()

    return tool(bash)


TOOLS = {"tools/bash": SandboxTool(bash)}


def made(sandboxes: FakeSandboxes, **options: Any) -> SweBenchEnv:
    env = SweBenchEnv(TASK, tools=tuple(TOOLS), **options)
    env.sandboxes, env.find_tool = sandboxes, TOOLS.__getitem__
    return env


async def play(env: SweBenchEnv, actions: Sequence[Message]) -> list[Any]:
    opening, _ = await env.reset(seed=0)
    try:
        return [opening, *[await env.step(action) for action in actions]]
    finally:
        await env.close()


def submitted(repository: Repository, monkeypatch: pytest.MonkeyPatch, **options: Any) -> StepResult:
    monkeypatch.setattr(grading.secrets, "token_hex", lambda _: repository.name)
    sandboxes = FakeSandboxes(
        lambda sandbox, call: None if call.command[0] == "echo" else repository.answer(sandbox, call)
    )
    result = asyncio.run(play(made(sandboxes, **options), [SUBMIT]))[-1]
    assert all(sandbox.closed for sandbox in sandboxes.opened)
    return result


def test_the_agent_is_shown_the_issue_and_nothing_of_its_solution() -> None:
    env = made(Repository().sandboxes())
    opening, *_ = asyncio.run(play(env, []))
    assert OWN["problem_statement"] in opening and "owner/it" in opening
    for hidden in (GOLD, OWN["test_patch"], "test_it.py", "test_a"):
        assert hidden not in opening
    assert {schema["name"] for schema in env.tool_schemas} == {"submit", "bash"}


def test_the_repository_is_prepared_before_the_agent_comes() -> None:
    repository = Repository()
    sandboxes = repository.sandboxes()
    asyncio.run(play(made(sandboxes), []))
    assert repository.done == ["prepare", "keep"]
    (request,) = [sandbox.request for sandbox in sandboxes.opened]
    assert (request.image, request.network, request.workdir) == (OWN["image"], "none", "/testbed")
    written = b"".join(content for sandbox in sandboxes.opened for content in sandbox.files.values())
    assert b"test_a" not in written


def test_a_good_submission_is_worth_one(monkeypatch: pytest.MonkeyPatch) -> None:
    result = submitted(Repository(diff=CHANGED), monkeypatch)
    assert (result.reward, result.terminated) == (1.0, True)
    details = result.info["metadata"]
    assert details["patch"] == GOLD and details["resolved"] and details["report"]["owner__it-1"]["resolved"]


@pytest.mark.parametrize(
    ("diff", "reason"),
    [
        (ExecResult(0, b""), "empty_patch"),
        (ExecResult(0, GOLD.encode() + b"+x\n" * (1 << 19)), "patch_too_long"),
        (ExecResult(128, stderr=b"fatal: unreadable"), "unreadable"),
    ],
)
def test_a_submission_that_is_none_is_worth_nothing(diff: ExecResult, reason: str, monkeypatch) -> None:
    result = submitted(Repository(diff=diff), monkeypatch)
    assert (result.reward, result.terminated, result.info["metadata"]["reason"]) == (0.0, True, reason)


def test_the_share_of_tests_by_option(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Repository().log.replace("PASSED tests/test_it.py::test_c", "FAILED tests/test_it.py::test_c")
    assert submitted(Repository(diff=CHANGED, log=log), monkeypatch).reward == 0
    assert submitted(Repository(diff=CHANGED, log=log), monkeypatch, reward="share").reward == 0.5
    with pytest.raises(ValueError, match="reward='all'"):
        made(FakeSandboxes(), reward="all")


def test_text_is_answered_and_an_episode_that_never_submits_scores_nothing() -> None:
    env = made(Repository().sandboxes(), max_steps=2)
    _, first, second = asyncio.run(play(env, [Message.of("assistant", "done!")] * 2))
    assert (first.reward, first.done) == (0, False) and "submit" in first.observation
    assert (second.reward, second.truncated, second.info["truncated_by"]) == (0, True, "max_steps")


@pytest.mark.parametrize(
    "call",
    [ToolCall("finish", {"answer": "done"}), ToolCall("", "{", error="not JSON"), ToolCall("bash", {"cmd": "ls"})],
)
def test_a_call_that_is_none_is_answered(call: ToolCall) -> None:
    result = asyncio.run(play(made(Repository().sandboxes()), [Message("assistant", tool_calls=(call,))]))[-1]
    assert not result.done and result.observation[0].text.startswith("Error: ")


def test_a_command_is_bounded_as_the_suite_asks() -> None:
    repository = Repository()
    sandboxes = FakeSandboxes(
        lambda sandbox, call: None if call.command[0] == "echo" else repository.answer(sandbox, call)
    )
    call = Message("assistant", tool_calls=(ToolCall("bash", {"command": "hello"}, "1"),))
    _, result = asyncio.run(play(made(sandboxes, command_timeout_s=7.0), [call]))
    assert result.observation[0].text == "hello\n"
    assert [each.timeout_s for each in sandboxes.calls if each.command[0] == "echo"] == [7.0]


def test_what_fails_on_our_side_is_no_score() -> None:
    with pytest.raises(SandboxError, match="lost"):
        asyncio.run(play(made(FakeSandboxes(lambda *_: (_ for _ in ()).throw(SandboxError("lost")))), []))
    with pytest.raises(SandboxError, match="could not be prepared"):
        asyncio.run(play(made(FakeSandboxes(lambda *_: ExecResult(1, stderr=b"no git"))), []))
    with pytest.raises(SandboxError, match=r"set env\.sandboxes"):
        asyncio.run(play(SweBenchEnv(TASK), []))


def test_an_image_that_can_be_built_says_how() -> None:
    env = SweBenchEnv(Task("t", gold={**OWN, "source": {"path": "."}}))
    env.sandboxes = FakeSandboxes(fail=SandboxError("no such image.", kind="sandbox_image", retry=False))
    with pytest.raises(SandboxError, match="tunix swebench build") as caught:
        asyncio.run(play(env, []))
    assert (caught.value.kind, caught.value.retry) == ("sandbox_image", False)


def test_a_second_reset_begins_in_a_fresh_container() -> None:
    sandboxes = Repository().sandboxes()
    env = made(sandboxes)

    async def twice() -> tuple[Any, Any]:
        first = await env.reset(seed=0)
        second = await env.reset(seed=0)
        assert [sandbox.closed for sandbox in sandboxes.opened] == [True, False]
        await env.close()
        return first, second

    first, second = asyncio.run(twice())
    assert first == second and all(sandbox.closed for sandbox in sandboxes.opened)


def test_the_known_solutions_are_what_a_policy_could_say() -> None:
    found = solutions(TASK)
    (call,), (end,) = (message.tool_calls for message in found["gold"])
    assert GOLD in call.arguments["command"] and (call.name, end.name) == ("bash", "submit")
    assert [message.tool_calls[0].name for message in found["empty"]] == ["submit"]
