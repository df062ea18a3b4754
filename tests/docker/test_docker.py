"""Containers of a real engine: what they hold, what they keep from one another, and that none is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tunix_core.errors import SandboxError, UsageError
from tunix_core.sandboxes import Sandbox, SandboxLimits, SandboxRequest
from tunix_core.testing.sandboxes import check_sandbox

pytestmark = pytest.mark.docker
TRAINER = Path(__file__).parent / "trainer.py"
SMALL = SandboxLimits(memory_mb=128, disk_mb=16, file_mb=8, pids=48, output_bytes=1 << 16)
FORKS = """
import os, time
children = []
try:
    while True:
        children.append(os.fork() or time.sleep(60))
except BlockingIOError as error:
    print(error)
    for child in children:
        os.kill(child, 9)
"""
FORK_BOMB = "b() { b | b & }; b; sleep 60"


def provider(**options: Any) -> Any:
    from tunix_core.sandboxes.docker import DockerSandboxes

    return DockerSandboxes(**options)


@asynccontextmanager
async def opened(request: SandboxRequest, **options: Any) -> AsyncIterator[Any]:
    sandboxes = provider(max_warm=0, **options)
    try:
        yield await sandboxes.open(request)
    finally:
        await sandboxes.aclose()


def with_sandbox(request: SandboxRequest, body: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(request) as sandbox:
            await body(sandbox)

    asyncio.run(main())


@pytest.fixture
def api() -> Iterator[Any]:
    from tunix_core.sandboxes.docker.engine import Engine

    with Engine(threads=1) as engine:
        yield engine.connect()


async def said(sandbox: Sandbox, script: str, **how: Any) -> str:
    result = await sandbox.exec(["sh", "-c", script], **{"timeout_s": 30.0, **how})
    return (result.stdout + result.stderr).decode()


def test_it_keeps_the_promises_of_every_sandbox(base_image: str) -> None:
    async def main() -> None:
        sandboxes = provider()
        try:
            await check_sandbox(sandboxes, SandboxRequest(base_image))
        finally:
            await sandboxes.aclose()

    asyncio.run(main())


def test_the_agent_is_nobody_and_reaches_nothing(base_image: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        status = await said(sandbox, "cat /proc/self/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == ["1000"] * 4
        assert {fields[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
        assert fields["NoNewPrivs"] == "1"
        assert "lo" in (interfaces := await said(sandbox, "ls /sys/class/net")) and "eth" not in interfaces
        assert "denied" in await said(sandbox, "touch /etc/mine; cat /etc/shadow; kill -9 1; cat /proc/1/environ")
        assert "docker.sock" not in await said(sandbox, "ls -a / /run /var/run")
        root = await said(sandbox, "id -u; grep CapEff /proc/self/status; touch /etc/roots && echo wrote", user="root")
        assert root.split() == ["0", "CapEff:", "0" * 16, "wrote"]

    with_sandbox(SandboxRequest(base_image, SMALL), body)


def test_it_finds_itself_without_a_network(base_image: str) -> None:
    names = "import socket; print(*(socket.gethostbyname(name) for name in ('localhost', socket.gethostname())))"

    async def body(sandbox: Sandbox) -> None:
        found = await sandbox.exec(["python3", "-c", names], timeout_s=60)
        assert found.stdout == b"127.0.0.1 127.0.0.1\n", found

    with_sandbox(SandboxRequest(base_image, SMALL), body)


def test_memory_processes_files_and_disk_are_limited(base_image: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        eats = await sandbox.exec(["python3", "-c", "x = bytearray(400 << 20); x[::4096] = x[::4096]"], timeout_s=60)
        assert eats.exit_code == 137
        forked = await sandbox.exec(["python3", "-c", FORKS], timeout_s=60)
        assert b"temporarily unavailable" in forked.stdout
        assert "File too large" in await said(sandbox, "trap '' XFSZ; head -c 9M /dev/zero > long")
        await said(sandbox, "rm -f long")
        fills = "for i in 1 2 3; do head -c 7M /dev/zero > $i || echo full; done"
        assert "full" in await said(sandbox, fills) and "No space left" in await said(
            sandbox, "head -c 7M /dev/zero > 4"
        )
        with pytest.raises(OSError, match="No space left"):
            await sandbox.write("5", bytes(7 << 20))
        await said(sandbox, "rm -f 1 2 3 4 5")
        assert (await sandbox.exec(["true"], timeout_s=30)).ok

    with_sandbox(SandboxRequest(base_image, SMALL), body)


def test_a_timeout_kills_what_the_command_started(base_image: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        late = await sandbox.exec(["sh", "-c", "echo begun; sleep 600 & sleep 601; echo done"], timeout_s=0.5)
        assert (late.exit_code, late.stdout, late.timed_out) == (None, b"begun\n", True)
        assert "sleep 60" not in await said(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        await said(sandbox, "sleep 602 & echo in the background")
        assert "sleep 602" in await said(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), "a server may be started"

    with_sandbox(SandboxRequest(base_image, SMALL), body)


def test_a_fork_bomb_is_a_result_and_the_sandbox_goes_on(base_image: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        bomb = await sandbox.exec(["bash", "-c", FORK_BOMB], timeout_s=3)
        assert bomb.timed_out
        assert (await sandbox.exec(["echo", "alive"], timeout_s=30)).stdout == b"alive\n"

    with_sandbox(SandboxRequest(base_image, SMALL), body)


def test_processes_that_leave_no_room_are_ended_for_the_next_command(base_image: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        shell = await sandbox.shell()
        full = await shell.run("while sleep 600 & do :; done", timeout_s=3)
        assert full.timed_out or "fork" in full.stdout.decode()
        await sandbox.exec(["sh", "-c", "for i in $(seq 60); do setsid sleep 600 & done"], timeout_s=5)
        alive = await sandbox.exec(["echo", "alive"], timeout_s=30)
        assert alive.stdout == b"alive\n", alive
        assert (await shell.run("echo alive", timeout_s=30)).stdout == b"alive\n"

    with_sandbox(SandboxRequest(base_image, SMALL), body)


def test_a_flood_of_output_does_not_enter_memory(base_image: str) -> None:
    import resource

    async def body(sandbox: Sandbox) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await sandbox.exec(["head", "-c", "300M", "/dev/zero"], timeout_s=120)
        assert (result.exit_code, result.dropped_stdout) == (0, (300 << 20) - SMALL.output_bytes)
        assert len(result.stdout) < SMALL.output_bytes + 100
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown_mb < 64

    with_sandbox(SandboxRequest(base_image, SMALL), body)


def test_what_leaves_a_sandbox_stays_where_it_was_sent(base_image: str, tmp_path: Path) -> None:
    async def body(sandbox: Sandbox) -> None:
        await said(sandbox, "mkdir evil; ln -s /etc/passwd evil/link")
        with pytest.raises(ValueError, match="can't be unpacked"):
            await sandbox.copy_out("evil", tmp_path / "out")
        await said(sandbox, "rm evil/link; mkfifo evil/fifo")
        with pytest.raises(OSError, match="not a plain file"):
            await sandbox.read("evil/fifo")
        await said(sandbox, "ln -s /dev/zero evil/zero")
        with pytest.raises(OSError, match="not a plain file"):
            await sandbox.read("evil/zero", max_bytes=1000)

    with_sandbox(SandboxRequest(base_image, SMALL), body)


def test_the_work_tree_keeps_what_the_image_has_there_and_is_the_agents(base_image: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        assert "Debian" in (await sandbox.read("debian_version.txt")).decode() or await sandbox.read("issue")
        assert (await sandbox.exec(["sh", "-c", "stat -c %u . issue; echo more >> issue"], timeout_s=30)).stdout == (
            b"1000\n1000\n"
        )

    async def main() -> None:
        async with opened(SandboxRequest(base_image, SMALL)) as first:
            await first.exec(["sh", "-c", "mkdir -p /srv/tree && cp /etc/issue /srv/tree"], user="root", timeout_s=30)
            await first.exec(["sh", "-c", "echo Debian > /srv/tree/debian_version.txt"], user="root", timeout_s=30)
            image = await first.snapshot()
            async with opened(SandboxRequest(image, SMALL, workdir="/srv/tree")) as second:
                await body(second)

    asyncio.run(main())


def test_what_is_written_outside_of_the_work_tree_is_watched(base_image: str) -> None:
    async def main() -> None:
        sandboxes = provider(max_warm=0)
        try:
            sandbox = await sandboxes.open(SandboxRequest(base_image, SMALL))
            await sandboxes.look()
            assert (await sandbox.exec(["true"], timeout_s=30)).ok
            await said(sandbox, "for i in 1 2 3; do head -c 7M /dev/zero > /var/tmp/$i; done")
            await sandboxes.look()
            with pytest.raises(SandboxError, match=r"outside of its work tree, and limits\.disk_mb=16"):
                await sandbox.exec(["true"], timeout_s=30)
            assert sandboxes.statistics()["lost"] == 1
        finally:
            await sandboxes.aclose()

    asyncio.run(main())


def test_a_used_container_is_never_given_again_and_a_warm_one_is(base_image: str, api: Any) -> None:
    async def main() -> None:
        sandboxes = provider(max_warm=2)
        request = SandboxRequest(base_image, SMALL)
        try:
            seen = []
            for _ in range(3):
                sandbox = await sandboxes.open(request)
                await sandbox.write("touched", b"")
                seen.append(sandbox.id)
                await sandbox.close()
                while sandboxes.statistics()["warm"] < 1:  # noqa: ASYNC110 - a pool tells nobody what it made ahead
                    await asyncio.sleep(0.05)
            assert len(set(seen)) == 3
            assert sandboxes.statistics()["warm_starts"] == 2
            assert sandboxes.used_images() == {base_image: await sandboxes.identify(base_image)}
        finally:
            await sandboxes.aclose()

    asyncio.run(main())
    assert not mine(api)


def test_cancelling_an_open_leaves_nothing(base_image: str, api: Any) -> None:
    async def main() -> None:
        sandboxes = provider(max_warm=0)
        try:
            await sandboxes.start()
            opening = asyncio.ensure_future(sandboxes.open(SandboxRequest(base_image, SMALL)))
            await asyncio.sleep(0.1)
            opening.cancel()
            await asyncio.wait({opening})
            assert sandboxes.statistics()["open"] == 0
        finally:
            await sandboxes.aclose()

    asyncio.run(main())
    assert not mine(api)


def test_an_image_that_is_not_there_says_how_to_get_it() -> None:
    async def main() -> None:
        sandboxes = provider(pull=False)
        try:
            with pytest.raises(SandboxError, match=r"docker pull tunix/no-such-image:1") as caught:
                await sandboxes.open(SandboxRequest("tunix/no-such-image:1"))
            assert (caught.value.kind, caught.value.retry) == ("sandbox_image", False)
        finally:
            await sandboxes.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"workdir": "/"}, {"workdir": "here"}, {"user": "root"}, {"user": "0:0"}])
def test_a_request_that_can_not_be_met_is_refused(base_image: str, wrong: dict[str, str]) -> None:
    async def main() -> None:
        sandboxes = provider()
        try:
            with pytest.raises(UsageError, match=r"such as"):
                await sandboxes.open(SandboxRequest(base_image, **wrong))  # type: ignore[arg-type]
        finally:
            await sandboxes.aclose()

    asyncio.run(main())


def mine(api: Any, pid: int | None = None) -> list[Any]:
    """Containers of a process."""
    from tunix_core.sandboxes.docker.reaper import OWNER

    found = api.containers(all=True, filters={"label": OWNER})
    return [each for each in found if f"/{pid or os.getpid()}/" in each["Labels"][OWNER]]


@pytest.mark.parametrize(("moment", "running"), [("all are running\n", 32), ("the first is open\n", 1)])
def test_a_killed_trainer_leaves_no_container(base_image: str, api: Any, moment: str, running: int) -> None:
    trainer = subprocess.Popen([sys.executable, str(TRAINER), base_image, "32"], stdout=subprocess.PIPE, text=True)
    try:
        assert trainer.stdout and moment in iter(trainer.stdout.readline, "")
        assert len(mine(api, trainer.pid)) >= running
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.communicate()
    deadline = time.monotonic() + 60
    while mine(api, trainer.pid) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not mine(api, trainer.pid)


def test_the_reaper_takes_what_dead_runs_left_and_nothing_else(base_image: str, api: Any) -> None:
    from tunix_core.run.sandboxes import cleanup_sandboxes, list_sandboxes
    from tunix_core.sandboxes.docker.reaper import OWNER
    from tunix_core.sandboxes.owner import Owner

    me = Owner.of_this_process()
    owners = {
        "live": str(me),
        "orphan": str(Owner(me.host, me.pid, me.started + 1)),
        "elsewhere": "another-machine/1/1",
    }
    made = {
        state: api.create_container(base_image, command=["true"], labels={OWNER: owner})["Id"]
        for state, owner in owners.items()
    }
    try:
        states = {found["id"]: found["state"] for found in list_sandboxes()}
        assert {states[identity] for identity in made.values()} == set(owners)
        assert all(states[made[state]] == state for state in owners)
        removed = {found["id"] for found in cleanup_sandboxes()}
        assert made["orphan"] in removed and not removed & {made["live"], made["elsewhere"]}
        left = {found["id"] for found in list_sandboxes()}
        assert left >= {made["live"], made["elsewhere"]} and made["orphan"] not in left
    finally:
        for state in ("live", "elsewhere"):
            api.remove_container(made[state], force=True)
