"""Opens containers, keeps some warm, watches them, and leaves none behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from tunix_core.contracts import SandboxRequest
from tunix_core.errors import SandboxError, UsageError
from tunix_core.sandboxes.docker.container import DockerSandbox, Workshop
from tunix_core.sandboxes.docker.engine import Engine
from tunix_core.sandboxes.docker.images import Images, Resolve
from tunix_core.sandboxes.docker.lease import Heart
from tunix_core.sandboxes.docker.reaper import OWNER, clean, remove_images
from tunix_core.sandboxes.docker.seeds import Seeds
from tunix_core.sandboxes.owner import Guardian, Owner
from tunix_core.sandboxes.pool import Pool

log = logging.getLogger(__name__)
WATCH_S = 10.0  # between two looks at what containers wrote outside of their work trees
_QUOTAS = {"btrfs", "zfs", "windowsfilter"}
_HELD = {"MemoryLimit": "memory", "CpuCfsQuota": "CPU", "PidsLimit": "pids"}  # as an engine says it


class DockerSandboxes:
    """Containers of one Docker engine; satisfies `contracts.Sandboxes`.

    Args:
        max_open: containers in use at once; more wait.
        max_warm: containers of one kind that wait, ready, at most; as many do as were asked for at once of late.
        pull: whether an image that is not there is pulled.
        mirror: a registry asked first for images whose name has none.
        resolve_image: the hook "tunix_resolve_image".
    """

    isolates = True

    def __init__(
        self,
        *,
        max_open: int = 64,
        max_warm: int = 8,
        pull: bool = True,
        mirror: str = "",
        resolve_image: Resolve | None = None,
    ) -> None:
        if max_open < 1 or max_warm < 0:
            raise UsageError(f"max_open={max_open} must be at least 1, and max_warm={max_warm} at least 0")
        self._max_warm, self._pull, self._mirror, self._resolve = max_warm, pull, mirror, resolve_image
        self._owner = Owner.of_this_process()
        self._engine = Engine()
        self._slots = asyncio.Semaphore(max_open)
        self._open: set[DockerSandbox] = set()
        self._starting: asyncio.Task[str] | None = None
        self._opened = self._lost = 0

    # ---- opening -------------------------------------------------------------------------------------
    async def start(self) -> str:
        self._starting = self._starting or asyncio.ensure_future(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> str:
        await self._engine.call(lambda api: None)  # connects
        info = await self._engine.call(lambda api: api.info())
        await asyncio.get_running_loop().run_in_executor(None, clean, self._engine)
        self._guardian = Guardian("docker", self._owner)
        self._heart = Heart()
        labels = {OWNER: str(self._owner)}
        platform = f"{info['OSType']}/{_GO_ARCH.get(info['Architecture'], info['Architecture'])}"
        self._images = Images(_Engine(self._engine), platform, self._resolve, pull=self._pull, mirror=self._mirror)
        self._seeds = Seeds(self._engine, labels)
        self._workshop = Workshop(
            self._engine,
            self._images,
            self._seeds,
            self._heart,
            labels,
            quota=has_quotas(info),
            init=bool(info.get("InitBinary")),
            release=self._forget,
        )
        self._pool: Pool[SandboxRequest, DockerSandbox] = Pool(
            self._workshop.make, lambda sandbox: sandbox.close(), lambda sandbox: sandbox.usable, self._max_warm
        )
        self._watching = asyncio.ensure_future(self._watch())
        return describe(info)

    async def open(self, request: SandboxRequest) -> DockerSandbox:
        await self.start()
        await self._slots.acquire()
        try:
            sandbox = await self._pool.take(request)
        except BaseException:
            self._slots.release()
            raise
        self._open.add(sandbox)
        self._opened += 1
        return sandbox

    async def identify(self, image: str) -> str:
        await self.start()
        return await self._images.find(image)

    def used_images(self) -> Mapping[str, str]:
        used = self._images.used if self._started else {}
        return {name: identity for name, identity in used.items() if name != identity}  # snapshots are their ids

    @property
    def _started(self) -> bool:
        return self._starting is not None and self._starting.done() and not self._starting.exception()

    def _forget(self, sandbox: DockerSandbox) -> None:
        if sandbox in self._open:
            self._open.discard(sandbox)
            self._lost += not sandbox.closed
            self._slots.release()

    # ---- watching ------------------------------------------------------------------------------------
    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._pool.adjust()
            try:
                await self.look()
            except SandboxError as error:
                log.warning("looking at the sandboxes: %s", error)

    async def look(self) -> None:
        """Ends containers that wrote more than they may outside of their work tree."""
        limits = {sandbox.id: sandbox for sandbox in self._open}
        if not limits or self._workshop.quota:
            return
        mine = {"label": f"{OWNER}={self._owner}"}
        for each in await self._engine.call(lambda api: api.containers(size=True, filters=mine)):
            sandbox = limits.get(each["Id"])
            most = sandbox.request.limits.disk_mb << 20 if sandbox else 0
            if sandbox and each.get("SizeRw", 0) > most:
                written = f"it wrote {each['SizeRw'] >> 20} MB outside of its work tree"
                await sandbox.lose(f"{written}, and limits.disk_mb={most >> 20}")

    # ---- closing -------------------------------------------------------------------------------------
    async def aclose(self) -> None:
        """Removes every container and image of this run."""
        if self._starting is None:
            return
        try:
            await self._starting
        except (SandboxError, UsageError):
            self._engine.close()
            return
        self._watching.cancel()
        await self._pool.aclose()
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._open)))
        while self._workshop.unfinished:
            await asyncio.wait(tuple(self._workshop.unfinished))
        self._seeds.close()
        self._heart.end()
        try:
            await asyncio.get_running_loop().run_in_executor(None, remove_images, self._engine, self._owner)
            self._guardian.end()
        except SandboxError as error:  # the guardian goes on trying when this process is gone
            log.warning("removing images: %s", error)
        self._engine.close()

    def statistics(self) -> Mapping[str, float]:
        found: dict[str, float] = {"open": len(self._open), "opened": self._opened, "lost": self._lost}
        if self._started:
            pool = self._pool
            found |= {
                "warm": pool.waiting,
                "making": pool.making,
                "warm_starts": pool.warm_starts,
                "cold_starts": pool.cold_starts,
            }
        return found


_GO_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


class _Engine:
    """The engine as `Images` asks it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def inspect(self, image: str) -> Mapping[str, Any]:
        return await self._engine.call(lambda api: api.inspect_image(image))

    async def pull(self, image: str, platform: str) -> None:
        await self._engine.call(lambda api: api.pull(image, platform=platform))

    async def tag(self, image: str, name: str) -> None:
        await self._engine.call(lambda api: api.tag(image, name))


def has_quotas(info: Mapping[str, Any]) -> bool:
    """Whether, as far as an engine tells, its storage limits a container's writable layer."""
    return info["Driver"] in _QUOTAS or (info["Driver"] == "overlay2" and _backing(info) == "xfs")


def _backing(info: Mapping[str, Any]) -> str:
    return dict(info.get("DriverStatus") or ()).get("Backing Filesystem", "")


def describe(info: Mapping[str, Any]) -> str:
    """What holds on this engine and what does not, in a line."""
    held = [name for key, name in _HELD.items() if info.get(key)]
    missing = [name for key, name in _HELD.items() if not info.get(key)]
    layer = "has a quota" if has_quotas(info) else f"has no quota and is looked at every {WATCH_S:g} s"
    return (
        f"sandboxes/docker: engine {info['ServerVersion']}, {info['Driver']} on {_backing(info) or 'its own'}, "
        f"cgroup v{info.get('CgroupVersion', '1')}. "
        "Holds: no network unless asked for; no root, capabilities or new privileges; "
        f"limits of {', '.join(held)} and the length of files; work tree and /tmp lie in memory, of limited size. "
        f"What is written elsewhere {layer}." + (f" Does NOT hold: limits of {', '.join(missing)}." if missing else "")
    )
