"""Environments with sandboxes: all they opened is closed with the episode, whatever became of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tunix_core.envs import BaseTaskEnv, ToolEnvironment, make_opener
from tunix_core.errors import EnvError, SandboxError, UsageError
from tunix_core.sandboxes import SandboxRequest
from tunix_core.specs import EnvSpec, Timeouts
from tunix_core.testing.sandboxes import FakeSandboxes
from tunix_core.tools import SandboxTool, Tool, as_tool
from tunix_core.types import Message, StepResult, Task, ToolCall

TASK = Task("t", {"question": "Do it."})


class Sandboxed(BaseTaskEnv):
    fails = ""

    async def _initial_observation(self) -> str:
        assert self.sandboxes is not None
        self.first = await self.sandboxes.open(SandboxRequest("a"))
        self.second = await self.sandboxes.open(SandboxRequest("b"))
        if self.fails == "reset":
            raise RuntimeError("as asked")
        return "ready"

    async def _step_impl(self, action: Any) -> StepResult:
        if self.fails == "step":
            await asyncio.sleep(3600)
        await self.first.close()
        return StepResult("done", 1.0, terminated=True)

    async def _close(self) -> None:
        if self.fails == "close":
            await asyncio.sleep(3600)


class Opened(Sandboxed):
    """Opens a sandbox again when the episode is over."""

    async def _close(self) -> None:
        self.late = asyncio.ensure_future(self.sandboxes.open(SandboxRequest("late")))  # type: ignore[union-attr]


def opener(cls: type, sandboxes: FakeSandboxes | None, **options: Any) -> Any:
    spec = EnvSpec("test/sandboxed", "x:y", "x:z", requires=("sandbox",), max_turns=4)
    timeouts = Timeouts(reset_s=5.0, step_s=0.2, close_s=0.2)
    return make_opener(spec, lambda _: cls, timeouts=timeouts, sandboxes=sandboxes, **options)


async def play(cls: type, sandboxes: FakeSandboxes) -> None:
    envs = opener(cls, sandboxes)
    handle = await envs.open(TASK)
    try:
        assert handle.sandbox is None
        await handle.reset(0)
        assert handle.sandbox is sandboxes.opened[0]
        await handle.step(Message.of("assistant", "go"))
        assert handle.sandbox is sandboxes.opened[1], "the first that is open"
    finally:
        await handle.close()
        await envs.aclose()


@pytest.mark.parametrize("fails", ["", "reset", "step", "close"])
def test_what_an_episode_opened_is_closed_with_it(fails: str) -> None:
    sandboxes = FakeSandboxes()
    cls = type("Failing", (Sandboxed,), {"fails": fails})

    async def main() -> None:
        if fails in ("reset", "step"):
            with pytest.raises(EnvError):
                await play(cls, sandboxes)
        else:
            await play(cls, sandboxes)

    asyncio.run(main())
    assert [sandbox.closed for sandbox in sandboxes.opened] == [True, True]


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_sandbox_that_can_not_be_closed_holds_up_no_episode(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tunix_core.envs.borrowed.CLOSE_S", 0.05)
    sandboxes = FakeSandboxes()

    async def main() -> None:
        async def close() -> None:
            if how == "raises":
                raise OSError("no engine")
            await asyncio.Event().wait()

        envs = opener(Sandboxed, sandboxes)
        handle = await envs.open(TASK)
        await handle.reset(0)
        sandboxes.opened[0].close = close  # type: ignore[method-assign]
        await handle.close()
        assert (envs.statistics()["closed"], envs.statistics()["open"]) == (1, 0)
        await envs.aclose()

    asyncio.run(main())
    assert sandboxes.opened[1].closed
    assert {"raises": "no engine", "hangs": "1 sandboxes were not closed within 0.05 s"}[how] in caplog.text


class Slow(FakeSandboxes):
    async def open(self, request: SandboxRequest) -> Any:
        await asyncio.sleep(0.05)
        return await super().open(request)


def test_nothing_is_opened_after_the_end() -> None:
    sandboxes = Slow()
    late: list[Any] = []

    class Late(Opened):
        async def _close(self) -> None:
            await super()._close()
            late.append(self.late)

    async def main() -> None:
        await play(Late, sandboxes)
        await asyncio.wait(late)
        assert isinstance(late[0].exception(), SandboxError)

    asyncio.run(main())
    assert all(sandbox.closed for sandbox in sandboxes.opened)


def test_a_sandbox_that_can_not_be_opened_fails_the_episode_under_its_own_kind() -> None:
    sandboxes = FakeSandboxes(fail=SandboxError("no image", kind="sandbox_image", retry=False))

    async def main() -> None:
        with pytest.raises(SandboxError) as caught:
            await play(Sandboxed, sandboxes)
        assert (caught.value.kind, caught.value.where) == ("sandbox_image", "env.reset")

    asyncio.run(main())


def test_such_an_environment_stays_in_this_process() -> None:
    with pytest.raises(UsageError, match="Leave isolation out"):
        opener(Sandboxed, FakeSandboxes(), isolation="process")


# ---- tools ----
def listing(sandbox: Any) -> Tool:
    async def ls() -> str:
        """Lists."""
        return " ".join(sandbox.files)

    return as_tool(ls)


def handing_in(sandbox: Any) -> Tool:
    async def submit(ok: bool = True) -> str:
        """Hands in."""
        if not ok:
            raise ValueError("not yet")
        return "the work"

    made = as_tool(submit)
    return Tool(made.name, made.description, made.parameters, made.fn, made.check, final=True)


class WithTools(ToolEnvironment):
    async def _initial_observation(self) -> str:
        assert self.sandboxes is not None
        sandbox = await self.sandboxes.open(SandboxRequest("a"))
        self.add_tools(sandbox, "tools/ls", SandboxTool(handing_in))
        return self.task["question"]

    def _grade(self, answer: str) -> float:
        return float(answer == "the work")


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", tool_calls=(ToolCall(name, arguments, "c1"),))


def with_tools(body: Any) -> None:
    sandboxes = FakeSandboxes(files={"a": {"/workspace/x": b""}})

    async def main() -> None:
        envs = opener(WithTools, sandboxes, find_tool={"tools/ls": SandboxTool(listing)}.__getitem__)
        handle = await envs.open(TASK)
        try:
            await body(handle, await handle.reset(0), sandboxes)
        finally:
            await handle.close()
            await envs.aclose()

    asyncio.run(main())


def test_tools_of_the_hub_work_in_the_episodes_sandbox() -> None:
    async def body(handle: Any, opening: Any, _: FakeSandboxes) -> None:
        assert {tool["name"] for tool in opening.tools} == {"ls", "submit", "finish"}
        (message,) = (await handle.step(call("ls"))).observation
        assert message.text == "/workspace/x"

    with_tools(body)


def test_a_final_tool_ends_the_episode_when_it_succeeds() -> None:
    async def body(handle: Any, _: Any, __: FakeSandboxes) -> None:
        refused = await handle.step(call("submit", ok=False))
        assert not refused.done and "not yet" in refused.observation[0].text
        result = await handle.step(call("submit"))
        assert (result.reward, result.terminated, result.info["response"]) == (1.0, True, "the work")

    with_tools(body)


def test_a_lost_sandbox_is_no_observation() -> None:
    def broken(sandbox: Any) -> Tool:
        async def ls() -> bytes:
            """Lists."""
            return await sandbox.read("x")

        return as_tool(ls)

    class Broken(WithTools):
        async def _initial_observation(self) -> str:
            said = await super()._initial_observation()
            self.add_tools(self.sandboxes.first, SandboxTool(broken))  # type: ignore[union-attr]
            return said

    sandboxes = FakeSandboxes(files={"a": {"/workspace/x": b""}})

    async def main() -> None:
        envs = opener(Broken, sandboxes, find_tool={"tools/ls": SandboxTool(listing)}.__getitem__)
        handle = await envs.open(TASK)
        await handle.reset(0)
        sandboxes.opened[0].lost = True
        with pytest.raises(SandboxError, match="lost"):
            await handle.step(call("ls"))
        await handle.close()
        await envs.aclose()

    asyncio.run(main())


def test_a_sandbox_tool_without_a_sandbox_and_an_environment_without_a_hub_say_what_is_missing() -> None:
    with pytest.raises(UsageError, match="sandbox=sandbox"):
        as_tool(SandboxTool(listing))
    with pytest.raises(UsageError, match="find_tool"):
        BaseTaskEnv({}).find_tool("tools/ls")
