"""The wall around a process of its own."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunix_core.contracts import EnvOpener
from tunix_core.envs import wire
from tunix_core.envs.process import Worker
from tunix_core.errors import EnvError, EpisodeError, failure_of
from tunix_core.types import Message, Task, ToolCall

Suite = Callable[..., EnvOpener]
HELLO = Message.of("assistant", "hello")


async def play(opener: EnvOpener, task: Task, steps: int = 1, action: Message = HELLO) -> list[Any]:
    handle = await opener.open(task)
    try:
        return [await handle.reset(1), *[await handle.step(action) for _ in range(steps)]]
    finally:
        await handle.close()


def run(opener_of: Callable[[], EnvOpener], main: Callable[[EnvOpener], Any]) -> Any:
    async def inner() -> Any:
        opener = opener_of()
        try:
            return await main(opener)
        finally:
            await opener.aclose()
            assert opener.statistics()["processes"] == 0

    return asyncio.run(inner())


def gone(pid: int) -> bool:
    """True when no process of that id runs (a zombie whose parent was killed counts as gone)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until(condition: Callable[[], bool]) -> None:
    """Looks until another process has got there; fails after ten seconds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass within 10 s")


def test_the_start_of_a_process_has_a_time_of_its_own(
    suite: Suite, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(worker: Worker, **fields: Any) -> None:
        await asyncio.Event().wait()

    async def main(opener: EnvOpener) -> None:
        with pytest.raises(EnvError, match=r"env\.open \(the start of its process\) took longer than 0\.02 s"):
            await play(opener, task)

    monkeypatch.setattr("tunix_core.envs.waiting.START_S", 0.02)
    monkeypatch.setattr(Worker, "load", never)
    run(lambda: suite("Probe", isolation="process"), main)


def test_twenty_episodes_share_one_process_of_another_group(suite: Suite, task: Task, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main(opener: EnvOpener) -> None:
        pids = set()
        for _ in range(20):
            opening, result = await play(opener, task)
            assert opening.messages[0].text.endswith("gold 2")
            assert result.observation == (Message.of("user", "heard hello"),)
            pids.add(result.info["pid"])
        assert len(pids) == 1 and os.getpid() not in pids
        assert os.getpgid(pids.pop()) != os.getpgid(0)

    run(lambda: suite("Probe", isolation="process", log=str(log)), main)
    assert len(log.read_text().splitlines()) == 20


def test_a_process_plays_the_episode_a_thread_plays(suite: Suite, task: Task) -> None:
    first, second = [
        run(lambda w=w: suite("Probe", isolation=w), lambda o: play(o, task, 0)) for w in ("process", None)
    ]
    assert first == second


def test_tool_calls_cross_over(suite: Suite, task: Task) -> None:
    calls = (
        ToolCall("add", {"a": 1, "b": 2}, "c1"),
        ToolCall("ponder", "{}", "c2"),
        ToolCall("", "{", "c3", "no JSON"),
    )

    async def main(opener: EnvOpener) -> None:
        opening, result = await play(opener, task, 1, Message("assistant", tool_calls=calls))
        assert [schema["name"] for schema in opening.tools] == ["add", "ponder", "finish"]
        assert [m.text for m in result.observation][:2] == ["3", "hm"]
        assert [m.tool_call_id for m in result.observation] == ["c1", "c2", "c3"]
        last = (await play(opener, task, 1, Message("assistant", tool_calls=(ToolCall("finish", {"answer": 2}),))))[-1]
        assert last.terminated and last.reward == 1.0

    run(lambda: suite("Adder", isolation="process"), main)


@pytest.mark.parametrize(
    ("do", "where", "kind"),
    [
        ("raise", "init", "env_raised"),
        ("raise", "reset", "env_raised"),
        ("exit", "step", "env_raised"),
        ("panic", "step", "env_raised"),
        ("grader", "step", "grader_lost"),
        ("nan", "step", "env_contract"),
        ("bytes", "step", "env_contract"),
        ("die", "step", "env_died"),
        ("leave", "reset", "env_died"),
        ("forever", "step", "env_timeout"),
    ],
)
def test_what_goes_wrong_has_a_kind_and_a_boundary(
    do: str, where: str, kind: str, suite: Suite, task: Task, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    async def main(opener: EnvOpener) -> None:
        with pytest.raises(EpisodeError) as caught:
            await play(opener, task)
        failure = failure_of(caught.value)
        assert (failure.kind, failure.boundary) == (kind, "env.open" if where == "init" else f"env.{where}")
        assert failure.retry == (kind != "env_contract")
        assert opener.statistics()["closed"] == 1
        assert opener.statistics()["processes"] == 0, "a process that saw a failure is not used again"

    step_s = 0.3 if do == "forever" else 20.0
    run(lambda: suite("Probe", isolation="process", do=do, where=where, log=str(log), step_s=step_s), main)
    closed_inside = where != "init" and kind not in ("env_died", "env_timeout")
    assert log.exists() == closed_inside


def test_a_process_killed_from_outside_says_by_which_signal(suite: Suite, task: Task) -> None:
    async def main(opener: EnvOpener) -> None:
        handle = await opener.open(task)
        await handle.reset(1)
        pid = (await handle.step(HELLO)).info["pid"]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvError, match="SIGKILL") as caught:
            await handle.step(HELLO)
        assert caught.value.kind == "env_died" and caught.value.retry
        await handle.close()
        assert gone(pid)
        await play(opener, task)

    run(lambda: suite("Probe", isolation="process"), main)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_hanging_process_is_killed_with_its_children(how: str, suite: Suite, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def main(opener: EnvOpener) -> None:
        handle = await opener.open(Task("t", {"pid_file": str(pid_file)}))
        await handle.reset(1)
        step = asyncio.ensure_future(handle.step(HELLO))
        if how == "cancel":
            await until(lambda: pid_file.exists() and pid_file.read_text() != "")
            step.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancel" else EnvError):
            await step
        await handle.close()
        assert opener.statistics()["processes"] == 0
        child = int(pid_file.read_text())
        await until(lambda: gone(child))  # the killed child is reaped by another process

    run(lambda: suite("Forker", isolation="process", step_s=2.5 if how == "timeout" else 60.0), main)


def killed_idle(pid: int) -> None:
    """Kills an idle worker, and returns when it is dead, which nobody has looked at yet."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def ends(descriptor: int) -> bool:
    """True when the process behind a pidfd ends within ten seconds. Closes it."""
    try:
        return bool(select.select([descriptor], [], [], 10.0)[0])
    finally:
        os.close(descriptor)


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a process is waited for by its descriptor")


@ON_LINUX
def test_processes_that_died_while_idle_are_replaced_and_what_they_left_is_killed(suite: Suite, task: Task) -> None:
    async def main(opener: EnvOpener) -> None:
        handles = [await opener.open(task) for _ in range(2)]
        for handle in handles:
            await handle.reset(1)
        infos = [(await handle.step(HELLO)).info for handle in handles]
        for handle in handles:
            await handle.close()
        children = [os.pidfd_open(info["child"]) for info in infos]
        for info in infos:
            killed_idle(info["pid"])
        _, result = await play(opener, task)
        assert result.info["pid"] not in [info["pid"] for info in infos]
        assert opener.statistics()["processes"] == 1
        assert all([ends(child) for child in children])

    run(lambda: suite("Parent", isolation="process"), main)


@ON_LINUX
@pytest.mark.parametrize("dead", [True, False])
def test_a_suite_that_is_closed_leaves_no_child_of_a_process(dead: bool, suite: Suite, task: Task) -> None:
    children: list[int] = []

    async def main(opener: EnvOpener) -> None:
        _, result = await play(opener, task)
        children.append(os.pidfd_open(result.info["child"]))
        if dead:
            killed_idle(result.info["pid"])

    run(lambda: suite("Parent", isolation="process"), main)
    assert ends(children[0])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ffffffff", r"said to have 4,294,967,295 bytes, where 67,108,864 are allowed"),
        ("000000025b5d", r"no frame: \[\]; expected a JSON object"),
        ("000000017b", r"no frame: Expecting property name.*; expected JSON"),
        ("000000027b7d", r"no answer: \{\}; expected \"value\" or \"error\""),
        ("00000001ff", r"no frame: .*can't decode byte 0xff.*; expected JSON"),
    ],
)
def test_a_process_that_says_what_is_no_frame_is_killed(said: str, told: str, suite: Suite) -> None:
    async def main(opener: EnvOpener) -> None:
        for _ in range(2):
            with pytest.raises(EnvError, match=told) as caught:
                await play(opener, Task("t", {"said": said}))
            failure = failure_of(caught.value)
            assert (failure.kind, failure.boundary, failure.retry) == ("env_contract", "env.step", False)
            assert opener.statistics()["processes"] == opener.statistics()["close_failures"] == 0

    run(lambda: suite("Babbler", isolation="process"), main)


def test_an_action_too_large_for_a_frame_is_refused_and_the_episode_goes_on(
    suite: Suite, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(opener: EnvOpener) -> None:
        handle = await opener.open(task)
        await handle.reset(1)
        monkeypatch.setattr(wire, "FRAME_BYTES", 1000)
        with pytest.raises(EnvError, match=r"may take 1,000 bytes as JSON, not 2,1\d\d\.") as caught:
            await handle.step(Message.of("assistant", "x" * 2000))
        assert (caught.value.kind, caught.value.retry) == ("env_contract", False)
        assert (await handle.step(HELLO)).observation == (Message.of("user", "heard hello"),)
        await handle.close()
        assert opener.statistics()["processes"] == 1

    run(lambda: suite("Probe", isolation="process"), main)


def test_a_suite_that_is_closed_leaves_no_process(suite: Suite, task: Task) -> None:
    pids: list[int] = []

    async def main(opener: EnvOpener) -> None:
        handles = [await opener.open(task) for _ in range(2)]
        for handle in handles:
            await handle.reset(1)
            pids.append((await handle.step(HELLO)).info["pid"])

    run(lambda: suite("AsyncProbe", isolation="process"), main)
    assert len(set(pids)) == 2 and all(map(gone, pids))


TRAINER = """
import asyncio, sys
from pathlib import Path
from tunix_core.envs import make_opener
from tunix_core.envs.worker import load_class
from tunix_core.specs import EnvSpec
from tunix_core.types import Message, Task

async def main():
    load = lambda target: load_class(*target.split(":"), sys.argv[1])
    spec = EnvSpec("sample/forker", "tunix_sample_envs:Forker", "a:b", isolation="process")
    handle = await make_opener(spec, load).open(Task("t", {"pid_file": sys.argv[2]}))
    await handle.reset(1)
    await handle.step(Message.of("assistant", "go"))

asyncio.run(main())
"""


def test_a_hanging_process_goes_when_the_trainer_is_killed(tmp_path: Path) -> None:
    pid_file, samples = tmp_path / "pid", Path(__file__).with_name("sample_envs.py")
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, str(samples), str(pid_file)])
    try:
        asyncio.run(until(lambda: pid_file.exists() and pid_file.read_text() != ""))
    finally:
        trainer.kill()
        trainer.wait()
    asyncio.run(until(lambda: gone(int(pid_file.read_text()))))
