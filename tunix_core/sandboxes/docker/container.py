"""One container as a sandbox, and how it is made."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any

from tunix_core.contracts import SandboxRequest
from tunix_core.errors import SandboxError, UsageError
from tunix_core.sandboxes.base import FILES_S, StreamSandbox
from tunix_core.sandboxes.docker.engine import Engine, Missing, Refused, plain_socket, remove_container
from tunix_core.sandboxes.docker.images import Images
from tunix_core.sandboxes.docker.lease import FIRST_PROCESS, LEASE_S, Heart, Lease
from tunix_core.sandboxes.docker.seeds import Seed, Seeds
from tunix_core.sandboxes.docker.stream import ExecStream
from tunix_core.sandboxes.output import Bounded, Whole
from tunix_core.sandboxes.running import KILLER

log = logging.getLogger(__name__)
TMP = "/tmp"
_TMP_SHARE = 4  # /tmp has a quarter of the work tree's size on top of it
_KILLS = (0.1, 0.5, 2.0)  # seconds before another try
_KILL_S = 20.0
_LOOK_S = 0.02
_ROOM = (64, 512)  # processes let in beyond the limit, for the one that ends the others


@dataclass(slots=True)
class Workshop:
    """What containers are made with.

    Attributes:
        quota: whether the engine's storage can limit a container's writable layer.
        init: whether the engine has an init of its own, which buries processes that nobody waits for.
        release: called when a sandbox is gone.
    """

    engine: Engine
    images: Images
    seeds: Seeds
    heart: Heart
    labels: dict[str, str]
    quota: bool
    init: bool
    release: Callable[[DockerSandbox], None]
    unfinished: set[asyncio.Task[Any]] = field(default_factory=set)

    async def make(self, request: SandboxRequest) -> DockerSandbox:
        """A container that runs and that nobody has touched. Cancelled, it is removed as soon as it is there."""
        check_request(request)
        making = asyncio.ensure_future(self._make(request))
        self.unfinished.add(making)
        making.add_done_callback(self.unfinished.discard)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._follow(making, _discard(making))
            raise

    def _follow(self, making: asyncio.Task[DockerSandbox], work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.unfinished.add(task)
        task.add_done_callback(self.unfinished.discard)

    async def _make(self, request: SandboxRequest) -> DockerSandbox:
        image = await self.images.find(request.image)
        seed = await self.seeds.find(image, request.workdir)
        identity, sock = await self._started(image, request)
        lease = Lease(sock)
        self.heart.add(lease)
        sandbox = DockerSandbox(request, identity, lease, self)
        try:
            if seed is not None:
                await sandbox.plant(seed)
            return sandbox
        except BaseException:
            await sandbox.close()
            raise

    async def _started(self, image: str, request: SandboxRequest) -> tuple[str, Any]:
        try:
            return await self.engine.call(lambda api: self._run(api, image, request))
        except Refused as error:
            if not (self.quota and "storage" in str(error).lower()):
                raise
            log.warning("this engine's storage has no quotas after all (%s); the writable layer is watched", error)
            self.quota = False
            return await self._started(image, request)

    def _run(self, api: Any, image: str, request: SandboxRequest) -> tuple[str, Any]:
        """Makes, listens and starts, in this order: from its first moment it hears whether its owner lives."""
        identity = api.create_container(
            image,
            entrypoint=["/bin/sh", "-c", FIRST_PROCESS, str(LEASE_S)],
            command=[],
            user="0:0",
            stdin_open=True,
            # No endpoint on the engine's network "none" either: a start takes half the time, and engine 20.10 can
            # stand still for ever when such endpoints come and go at once.
            network_disabled=request.network == "none",
            environment={"HOME": TMP, "LANG": "C.UTF-8", **dict(request.env)},
            labels=self.labels,
            host_config=api.create_host_config(**host_config(request, quota=self.quota, init=self.init)),
        )["Id"]
        try:
            sock = plain_socket(api.attach_socket(identity, params={"stdin": 1, "stream": 1}))
            api.start(identity)
            return identity, sock
        except BaseException:
            with suppress(Exception):
                remove_container(api, identity)
            raise


async def _discard(making: asyncio.Task[DockerSandbox]) -> None:
    await asyncio.wait({making})
    if not making.cancelled() and making.exception() is None:
        await making.result().close()


def check_request(request: SandboxRequest) -> None:
    """Raises UsageError when a container can't be made like that."""
    path = request.workdir
    if not posixpath.isabs(path) or posixpath.normpath(path) != path or path in ("/", TMP):
        raise UsageError(f"workdir={path!r} must be an absolute, plain path, such as '/workspace', and not / or {TMP}")
    uid, _, gid = request.user.partition(":")
    if not (uid.isdigit() and gid.isdigit() and int(uid) > 0):
        raise UsageError(f"user={request.user!r} must be 'uid:gid' in numbers, and not root: such as '1000:1000'")


def host_config(request: SandboxRequest, *, quota: bool, init: bool) -> dict[str, Any]:
    """The limits of a container, as the SDK takes them."""
    limits, (uid, _, gid) = request.limits, request.user.partition(":")
    tmp_mb = max(16, limits.disk_mb // _TMP_SHARE)
    memory = f"{limits.memory_mb + limits.disk_mb + tmp_mb}m"  # what lies in memory counts as the container's
    return {
        "network_mode": request.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": memory,
        "memswap_limit": memory,
        "nano_cpus": int(limits.cpus * 1e9),
        "pids_limit": limits.pids,
        "ulimits": [
            {"Name": "fsize", "Soft": limits.file_mb << 20, "Hard": limits.file_mb << 20},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "tmpfs": {
            request.workdir: f"rw,exec,nosuid,nodev,size={limits.disk_mb}m,uid={uid},gid={gid},mode=755",
            TMP: f"rw,exec,nosuid,nodev,size={tmp_mb}m,mode=1777",
        },
        "log_config": {"Type": "none"},
        "auto_remove": True,
        "init": init,
        **({"storage_opt": {"size": f"{limits.disk_mb}m"}} if quota else {}),
    }


class DockerSandbox(StreamSandbox):
    """A container; satisfies `contracts.Sandbox`."""

    def __init__(self, request: SandboxRequest, identity: str, lease: Lease, workshop: Workshop) -> None:
        super().__init__(request, request.workdir)
        self.id, self._lease, self._workshop = identity, lease, workshop
        self._engine = workshop.engine
        self._why_lost = ""
        self._removing: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        """Whether, for all that is known, it runs."""
        return self._lease.kept and not self._closed and not self._why_lost

    async def start(self, argv: Sequence[str], user: str, env: Mapping[str, str]) -> ExecStream:
        try:
            identity, sock = await self._engine.call(lambda api: self._exec(api, argv, user, env))
        except SandboxError as error:
            raise SandboxError(self._why_lost or f"the container can't run a command: {error}") from error
        return await ExecStream.open(self._engine, identity, sock)

    def _exec(self, api: Any, argv: Sequence[str], user: str, env: Mapping[str, str]) -> tuple[str, Any]:
        made = api.exec_create(self.id, list(argv), stdin=True, user=user, environment=dict(env) or None)["Id"]
        return made, plain_socket(api.exec_start(made, socket=True))

    async def kill(self, pid: int, user: str) -> None:
        for wait_s in (*_KILLS, None):
            try:
                async with asyncio.timeout(_KILL_S):
                    await self._engine.call(lambda api: self._kill(api, pid, user))
                return
            except (SandboxError, TimeoutError) as error:
                if self._closed or isinstance(error, Missing):
                    return
                if wait_s is not None:
                    await asyncio.sleep(wait_s)
                elif not await self.make_room():
                    await self.lose(f"a command that ran out of time could not be killed: {error}")

    def _kill(self, api: Any, pid: int, user: str) -> None:
        self._run_small(api, ["/bin/sh", "-c", KILLER, "sh", str(pid)], user)

    async def make_room(self) -> bool:
        """Ends all that the agent runs, where its processes leave no room for another: for that one, there is."""
        for more in _ROOM:
            try:
                await self._engine.call(lambda api, more=more: self._make_room(api, more))
                log.info("the processes of a sandbox left no room for another, and were killed")
                return True
            except SandboxError as error:
                log.debug("making room: %s", error)
        return False

    def _make_room(self, api: Any, more: int) -> None:
        self._limit_pids(api, self.request.limits.pids + more)
        try:
            self._run_small(api, ["/bin/sh", "-c", "kill -KILL -1"], self.request.user)
        finally:
            self._limit_pids(api, self.request.limits.pids)

    def _limit_pids(self, api: Any, limit: int) -> None:
        """What the SDK's `update_container` leaves out."""
        where = f"{api.base_url}/v{api.api_version}/containers/{self.id}/update"
        api.post(where, json={"PidsLimit": limit}, timeout=_KILL_S).raise_for_status()

    def _run_small(self, api: Any, command: Sequence[str], user: str) -> None:
        """A command of ours, without a wrapper. Raises SandboxError unless it succeeds."""
        made = api.exec_create(self.id, list(command), user=user)["Id"]
        said = api.exec_start(made)
        deadline = time.monotonic() + _KILL_S
        while (ended := api.exec_inspect(made))["Running"] and time.monotonic() < deadline:
            time.sleep(_LOOK_S)  # in a thread of the engine's
        if ended["ExitCode"] != 0:
            raise SandboxError(f"{command[2]}: {said.decode(errors='replace')[:300]}")

    async def plant(self, seed: Seed) -> None:
        """Fills the work tree with what its image has there."""
        strip = ["--strip-components=1"] if seed.nested else []
        command = ["tar", "-xpf", "-", "-C", self.workdir, *strip]
        result = await self._run(command, FILES_S, pieces=seed.pieces)
        if not result.ok:
            said = result.stderr.decode(errors="replace")[:300]
            raise SandboxError(
                f"the image's {self.workdir} can't be copied into a work tree of limits.disk_mb="
                f"{self.request.limits.disk_mb}: {said}",
                retry=False,
            )

    async def snapshot(self) -> str:
        """The container's files outside of /tmp. To be opened with the same `workdir`."""
        self._check()
        file = TemporaryFile()  # noqa: SIM115 - the seeds close it
        sink = Whole(file, self.request.limits.disk_mb << 21)
        result = await self._run(["tar", "-cf", "-", "-C", self.workdir, "."], FILES_S, sink, Bounded(4096))
        if not result.ok or sink.dropped:
            raise SandboxError(f"the work tree can't be kept: {result.stderr.decode(errors='replace')[:300]}")
        file.flush()
        made = await self._engine.call(lambda api: api.commit(self.id)["Id"])
        await self._workshop.seeds.keep(made, self.workdir, file)
        return made

    async def lose(self, why: str) -> None:
        """Ends the container; whoever uses it from now on is told why."""
        self._why_lost = self._why_lost or why
        log.warning("a sandbox is lost: %s", why)
        await self.remove()

    async def remove(self) -> None:
        self._removing = self._removing or asyncio.ensure_future(self._remove())
        await asyncio.shield(self._removing)

    async def _remove(self) -> None:
        try:
            await self._engine.call(lambda api: remove_container(api, self.id))
        except SandboxError as error:
            log.warning("removing a container: %s; its lease ends it in %d s", error, LEASE_S)
        finally:
            self._workshop.heart.remove(self._lease)
            self._workshop.release(self)
