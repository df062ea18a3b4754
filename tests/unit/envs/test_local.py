"""The wall in this process: threads and the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tunix_core.contracts import EnvOpener
from tunix_core.errors import EnvError, EpisodeError, failure_of
from tunix_core.types import Message, Task

Suite = Callable[..., EnvOpener]
HELLO = Message.of("assistant", "hello")


@asynccontextmanager
async def closing(opener: EnvOpener) -> Any:
    try:
        yield opener
    finally:
        await opener.aclose()


async def play(opener: EnvOpener, task: Task, steps: int = 1, seed: int = 1) -> list[Any]:
    """One episode: its opening and its step results."""
    handle = await opener.open(task)
    try:
        return [await handle.reset(seed), *[await handle.step(HELLO) for _ in range(steps)]]
    finally:
        await handle.close()


def env_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tunix-env")]


def closes(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("cls", ["Probe", "AsyncProbe", "MixedProbe"])
def test_an_episode_gives_messages_rewards_and_one_close(cls: str, suite: Suite, task: Task, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main() -> None:
        async with closing(suite(cls, log=str(log))) as opener:
            opening, *results = await play(opener, task, steps=3)
            assert opening.messages[0].role == "user" and opening.messages[0].text.endswith("gold 2")
            assert results[0].observation == (Message.of("user", "heard hello"),)
            assert [(r.reward, r.done) for r in results] == [(0.5, False), (0.5, False), (0.5, True)]
            assert results[2].truncated and results[2].info["truncated_by"] == "max_steps"
            assert opener.statistics()["closed"] == 1 and opener.statistics()["open"] == 0

    asyncio.run(main())
    assert len(closes(log)) == 1
    assert not env_threads()


def test_the_seed_alone_decides_the_draw(suite: Suite, task: Task) -> None:
    async def main() -> None:
        async with closing(suite("Probe")) as opener:
            first, again, other = [(await play(opener, task, 0, seed))[0].messages for seed in (5, 5, 6)]
            assert first == again != other

    asyncio.run(main())


def test_blocking_calls_of_one_episode_share_a_thread_and_threads_are_reused(suite: Suite, task: Task) -> None:
    async def main() -> None:
        async with closing(suite("Probe")) as opener:
            threads = [r.info["thread"] for _ in range(20) for r in (await play(opener, task, steps=2))[1:]]
            assert len(set(threads)) == 1 and threads[0] != threading.current_thread().name
            assert opener.statistics()["threads_made"] == 1

    asyncio.run(main())


def test_an_async_environment_runs_on_the_event_loop(suite: Suite, task: Task) -> None:
    async def main() -> None:
        async with closing(suite("AsyncProbe")) as opener:
            results = (await play(opener, task))[1:]
            assert results[0].info["thread"] == threading.current_thread().name

    asyncio.run(main())


@pytest.mark.parametrize("cls", ["Probe", "AsyncProbe"])
@pytest.mark.parametrize(
    ("do", "where", "kind"),
    [
        ("raise", "init", "env_raised"),
        ("raise", "reset", "env_raised"),
        ("raise", "step", "env_raised"),
        ("exit", "step", "env_raised"),
        ("panic", "step", "env_raised"),
        ("stop", "step", "env_raised"),
        ("timeout", "step", "env_timeout"),
        ("grader", "step", "grader_lost"),
        ("nan", "step", "env_contract"),
        ("text", "step", "env_contract"),
        ("none", "step", "env_contract"),
        ("object", "step", "env_contract"),
        ("info", "step", "env_contract"),
        ("object", "reset", "env_contract"),
        ("empty", "reset", "env_contract"),
    ],
)
def test_what_goes_wrong_has_a_kind_and_a_boundary(
    cls: str, do: str, where: str, kind: str, suite: Suite, task: Task, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    async def main() -> None:
        async with closing(suite(cls, do=do, where=where, log=str(log))) as opener:
            with pytest.raises(EpisodeError) as caught:
                await play(opener, task)
            failure = failure_of(caught.value)
            assert (failure.kind, failure.boundary) == (kind, "env.open" if where == "init" else f"env.{where}")
            assert failure.retry == (kind != "env_contract")
            assert opener.statistics()["closed"] == opener.statistics()["opened"] == 1

    asyncio.run(main())
    assert len(closes(log)) == (0 if where == "init" else 1)
    assert not env_threads()


@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_a_hanging_thread_is_left_behind_and_closes_when_it_returns(
    where: str, suite: Suite, task: Task, tmp_path: Path, release: threading.Event
) -> None:
    log = tmp_path / "log"

    async def main() -> None:
        async with closing(suite("Probe", do="wait", where=where, log=str(log), reset_s=0.05, step_s=0.05)) as opener:
            with pytest.raises(EnvError, match=r"longer than 0\.05 s") as caught:
                await play(opener, task)
            assert caught.value.kind == "env_timeout"
            assert opener.statistics()["abandoned_threads"] == 1
            assert not closes(log)
            (thread,) = env_threads()
            release.set()
            thread.join(10)
            assert closes(log) == [f"close {thread.name}"]
            assert opener.statistics()["abandoned_threads"] == 0
            assert opener.statistics()["abandoned_threads_total"] == 1

    asyncio.run(main())


def test_a_thread_left_behind_closes_with_a_coroutine_even_after_the_loop_is_gone(
    suite: Suite, task: Task, tmp_path: Path, release: threading.Event
) -> None:
    log = tmp_path / "log"

    async def main() -> None:
        async with closing(suite("MixedProbe", do="wait", log=str(log), step_s=0.05)) as opener:
            with pytest.raises(EnvError):
                await play(opener, task)

    asyncio.run(main())
    (thread,) = env_threads()
    release.set()
    thread.join(10)
    assert len(closes(log)) == 1


def test_too_many_hanging_threads_send_the_suite_into_processes(
    suite: Suite, task: Task, release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with closing(suite("Probe", do="wait", max_abandoned=2, step_s=0.05)) as opener:
            for _ in range(2):
                with pytest.raises(EnvError):
                    await play(opener, task)
            assert opener.statistics()["in_processes"] == 0
            await play(opener, task, steps=0)
            assert opener.statistics()["in_processes"] == opener.statistics()["processes"] == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "2 threads are left behind" in caplog.text and "run in processes" in caplog.text


def test_no_more_threads_are_left_behind_than_allowed_however_many_calls_hang_at_once(
    suite: Suite, task: Task, release: threading.Event
) -> None:
    async def main() -> None:
        async with closing(suite("Probe", do="wait", max_abandoned=2, step_s=0.05)) as opener:
            errors = await asyncio.gather(*(play(opener, task) for _ in range(6)), return_exceptions=True)
            assert all(isinstance(error, EnvError) and error.retry for error in errors)
            assert all(error.kind == "env_timeout" for error in errors)
            refused = [str(error) for error in errors if "2 calls of" in str(error)]
            assert len(refused) == 4
            assert all("env.step (timeouts.step_s) took longer than 0.05 s" in str(error) for error in errors)
            assert opener.statistics()["abandoned_threads_total"] == 2
            assert opener.statistics()["closed"] == 6

    asyncio.run(main())
    hanging = env_threads()
    assert len(hanging) == 2
    release.set()
    for thread in hanging:
        thread.join(10)


def test_a_call_that_returns_after_all_gives_its_place_back(suite: Suite, task: Task, release: threading.Event) -> None:
    async def main() -> None:
        async with closing(suite("Probe", do="wait", max_abandoned=1, step_s=0.05)) as opener:
            other = await opener.open(task)
            await other.reset(1)
            with pytest.raises(EnvError, match="longer than"):
                await play(opener, task)
            with pytest.raises(EnvError, match="1 calls of"):
                await other.step(HELLO)
            release.set()
            (hanging,) = [thread for thread in env_threads() if thread.name.endswith("-2")]
            hanging.join(10)
            await asyncio.sleep(0)  # the loop hears of it
            assert (await other.step(HELLO)).observation

    asyncio.run(main())


def test_a_hanging_coroutine_is_cancelled_and_closed(suite: Suite, task: Task, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main() -> None:
        async with closing(suite("AsyncProbe", do="forever", log=str(log), step_s=0.05)) as opener:
            with pytest.raises(EnvError) as caught:
                await play(opener, task)
            assert caught.value.kind == "env_timeout"
            assert opener.statistics()["uncancelled_calls"] == 0

    asyncio.run(main())
    assert len(closes(log)) == 1


def test_a_coroutine_that_ignores_cancellation_is_left_behind_and_counted(
    suite: Suite, task: Task, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunix_core.envs.waiting.GRACE_S", 0.05)

    async def main() -> None:
        async with closing(suite("AsyncProbe", do="stubborn", step_s=0.05)) as opener:
            with pytest.raises(EnvError) as caught:
                await play(opener, task)
            assert caught.value.kind == "env_timeout"
            assert opener.statistics()["uncancelled_calls"] == 1
            release.set()

    asyncio.run(main())


def test_a_coroutine_that_cancels_itself_fails_the_episode_only(suite: Suite, task: Task) -> None:
    async def main() -> None:
        async with closing(suite("AsyncProbe", do="cancel")) as opener:
            with pytest.raises(EnvError, match="cancelled itself"):
                await play(opener, task)

    asyncio.run(main())


@pytest.mark.parametrize("cls", ["Probe", "AsyncProbe"])
def test_a_cancelled_episode_is_closed_once(
    cls: str, suite: Suite, task: Task, tmp_path: Path, release: threading.Event
) -> None:
    log = tmp_path / "log"

    async def main() -> None:
        async with closing(suite(cls, do="wait" if cls == "Probe" else "forever", log=str(log))) as opener:
            handle = await opener.open(task)
            await handle.reset(1)
            step = asyncio.create_task(handle.step(HELLO))
            for _ in range(3):
                await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            release.set()
            await asyncio.gather(handle.close(), handle.close())
            await handle.close()
            assert opener.statistics()["closed"] == 1 and opener.statistics()["abandoned_threads_total"] == 0

    asyncio.run(main())
    assert len(closes(log)) == 1


def test_a_close_cut_short_goes_on(suite: Suite, task: Task, tmp_path: Path, release: threading.Event) -> None:
    log = tmp_path / "log"

    async def main() -> None:
        async with closing(suite("Probe", do="wait", where="close", log=str(log))) as opener:
            handle = await opener.open(task)
            close = asyncio.create_task(handle.close())
            await asyncio.sleep(0)
            close.cancel()
            with pytest.raises(asyncio.CancelledError):
                await close
            assert opener.statistics()["closed"] == 0
            release.set()
            await handle.close()
            assert opener.statistics()["closed"] == 1

    asyncio.run(main())
    assert len(closes(log)) == 1
    assert not env_threads()


@pytest.mark.parametrize(
    ("cls", "do", "count"),
    [
        ("Probe", "raise", "close_failures"),
        ("AsyncProbe", "raise", "close_failures"),
        ("Probe", "wait", "close_timeouts"),
        ("AsyncProbe", "forever", "close_timeouts"),
    ],
)
def test_close_never_raises_and_is_bounded(
    cls: str, do: str, count: str, suite: Suite, task: Task, release: threading.Event
) -> None:
    async def main() -> None:
        async with closing(suite(cls, do=do, where="close", close_s=0.05)) as opener:
            await play(opener, task)
            assert opener.statistics()[count] == 1
            assert opener.statistics()["closed"] == 1

    asyncio.run(main())


def test_a_closed_environment_refuses_a_step(suite: Suite, task: Task) -> None:
    async def main() -> None:
        async with closing(suite("Probe")) as opener:
            handle = await opener.open(task)
            await handle.close()
            with pytest.raises(EnvError, match="is closed"):
                await handle.step(HELLO)

    asyncio.run(main())


def test_closing_the_suite_closes_what_is_open(suite: Suite, task: Task, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main() -> None:
        async with closing(suite("Probe", log=str(log))) as opener:
            for _ in range(3):
                await opener.open(task)

    asyncio.run(main())
    assert len(closes(log)) == 3
    assert not env_threads()


def test_members_of_a_group_do_not_share_their_payload(suite: Suite, task: Task) -> None:
    async def main() -> None:
        async with closing(suite("Dirty")) as opener:
            texts = [(await play(opener, task, 0))[0].messages[0].text for _ in range(2)]
            assert texts == ["seen 1", "seen 1"] and "seen" not in task.payload

    asyncio.run(main())


@pytest.mark.parametrize(("do", "kind"), [("", None), ("nan", "env_contract"), ("none", "env_contract")])
def test_an_episode_on_the_loop_leaves_nothing_to_the_garbage_collector(
    do: str, kind: str | None, suite: Suite, task: Task
) -> None:
    """Among ten thousand of them, to look for it costs more than all else."""

    async def episode(opener: EnvOpener) -> None:
        try:
            await play(opener, task)
        except EpisodeError as error:
            assert error.kind == kind
        else:
            assert kind is None

    async def main() -> int:
        async with closing(suite("AsyncProbe", do=do, where="step")) as opener:
            await asyncio.ensure_future(episode(opener))  # what is made once
            gc.collect()
            gc.disable()
            for _ in range(5):
                await asyncio.ensure_future(episode(opener))
            return gc.collect()

    try:
        assert asyncio.run(main()) == 0
    finally:
        gc.enable()
