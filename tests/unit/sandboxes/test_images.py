"""Images by name: resolved, pulled with patience, from a mirror first, pinned by digest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("docker")

from tunix_core.contracts import SandboxLimits, SandboxRequest
from tunix_core.errors import SandboxError, UsageError
from tunix_core.sandboxes.docker import DockerSandboxes
from tunix_core.sandboxes.docker.container import host_config
from tunix_core.sandboxes.docker.engine import Engine as DockerEngine
from tunix_core.sandboxes.docker.engine import Missing, Refused
from tunix_core.sandboxes.docker.images import Images
from tunix_core.sandboxes.docker.provider import describe, has_quotas
from tunix_core.testing import clock

PIN = "sha256:" + "a" * 64


class Engine:
    """Has images by name; each pull first meets the errors it was told to."""

    def __init__(self, here: Mapping[str, str] | None = None, registry: Mapping[str, str] | None = None) -> None:
        self.here, self.registry = dict(here or {}), dict(registry or {})
        self.errors: list[Exception] = []
        self.pulled: list[str] = []
        self.digests: list[str] = []

    async def inspect(self, image: str) -> Mapping[str, Any]:
        if image not in self.here:
            raise Missing(image)
        return {"Id": self.here[image], "RepoDigests": self.digests}

    async def pull(self, image: str, platform: str) -> None:
        assert platform == "linux/amd64"
        self.pulled.append(image)
        if self.errors:
            raise self.errors.pop(0)
        if image not in self.registry:
            raise Missing(f"no such image: {image}")
        self.here[image] = self.registry[image]

    async def tag(self, image: str, name: str) -> None:
        self.here[name] = self.here[image]


def find(engine: Engine, name: str, **options: Any) -> str:
    async def main() -> str:
        return await Images(engine, "linux/amd64", **options).find(name)

    return clock.run(main())


def test_an_image_that_is_here_is_not_pulled() -> None:
    engine = Engine({"mine:1": "id-1"})
    assert (find(engine, "mine:1"), engine.pulled) == ("id-1", [])


def test_a_missing_one_is_pulled_and_a_bad_connection_tried_again() -> None:
    engine = Engine(registry={"theirs:1": "id-2"})
    engine.errors = [SandboxError("connection reset"), Refused("too many requests", 429), Refused("oops", 500)]
    assert (find(engine, "theirs:1"), engine.pulled) == ("id-2", ["theirs:1"] * 4)


def test_one_that_nobody_has_is_asked_for_once_and_says_how_to_get_it() -> None:
    engine = Engine()
    with pytest.raises(SandboxError, match=r"'nobodys:1' can't be pulled.*docker pull nobodys:1") as caught:
        find(engine, "nobodys:1")
    assert (caught.value.kind, caught.value.retry, engine.pulled) == ("sandbox_image", False, ["nobodys:1"])


def test_patience_ends() -> None:
    engine = Engine(registry={"theirs:1": "id-2"})
    engine.errors = [SandboxError("connection reset")] * 4
    with pytest.raises(SandboxError, match="connection reset"):
        find(engine, "theirs:1")
    assert len(engine.pulled) == 4


def test_without_pulling_a_missing_image_is_an_error() -> None:
    engine = Engine(registry={"theirs:1": "id-2"})
    with pytest.raises(SandboxError, match="pulling is off"):
        find(engine, "theirs:1", pull=False)
    assert not engine.pulled


def test_the_mirror_is_asked_first_and_the_name_stays() -> None:
    engine = Engine(registry={"mirror.local/theirs:1": "id-3"})
    assert find(engine, "theirs:1", mirror="mirror.local/") == "id-3"
    assert engine.pulled == ["mirror.local/theirs:1"] and engine.here["theirs:1"] == "id-3"


def test_what_the_mirror_lacks_comes_from_where_the_name_says() -> None:
    engine = Engine(registry={"theirs:1": "id-2", "quay.local/x:1": "id-4"})
    assert find(engine, "theirs:1", mirror="mirror.local") == "id-2"
    assert find(engine, "quay.local/x:1", mirror="mirror.local") == "id-4"
    assert engine.pulled == ["mirror.local/theirs:1", "theirs:1", "quay.local/x:1"]


def test_a_plugin_may_name_another_image() -> None:
    engine = Engine({"pinned@" + PIN: "id-5", "other:1": "id-6"})
    engine.digests = ["pinned@" + PIN]
    asked: list[tuple[str, str]] = []

    def resolve(image: str, platform: str) -> str | None:
        asked.append((image, platform))
        return f"pinned@{PIN}" if image == "loose:1" else None

    assert find(engine, "loose:1", resolve=resolve) == "id-5"
    assert find(engine, "other:1", resolve=resolve) == "id-6"
    assert asked == [("loose:1", "linux/amd64"), ("other:1", "linux/amd64")]


def test_a_pin_that_does_not_hold_is_refused() -> None:
    engine = Engine({"pinned@" + PIN: "id-5"})
    engine.digests = ["pinned@sha256:" + "b" * 64]
    with pytest.raises(SandboxError, match="another digest"):
        find(engine, "pinned@" + PIN)


def test_no_image_is_an_error_that_says_what_is_missing() -> None:
    with pytest.raises(SandboxError, match=r"SandboxRequest\(image=…\)"):
        find(Engine(), "")


def test_many_who_ask_at_once_pull_once_and_a_failure_is_forgotten() -> None:
    engine = Engine(registry={"theirs:1": "id-2"})

    async def main() -> None:
        images = Images(engine, "linux/amd64")
        engine.errors = [Missing("not yet")]
        with pytest.raises(SandboxError):
            await images.find("theirs:1")
        assert await asyncio.gather(*(images.find("theirs:1") for _ in range(5))) == ["id-2"] * 5
        assert (engine.pulled, images.used) == (["theirs:1"] * 2, {"theirs:1": "id-2"})

    clock.run(main())


def test_without_an_engine_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")

    async def main() -> None:
        sandboxes = DockerSandboxes()
        try:
            with pytest.raises(UsageError, match=r"no-engine\.sock.*`docker info` works.*sandboxes/local"):
                await sandboxes.open(SandboxRequest("tunix/base:1"))
        finally:
            await sandboxes.aclose()

    asyncio.run(main())


INFO = {
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "ServerVersion": "1.2",
    "CgroupVersion": "2",
    "MemoryLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": False,
}


def test_what_an_engine_holds_is_told_from_what_it_says() -> None:
    told = describe(INFO)
    assert "limits of memory, CPU and the length of files" in told and "Does NOT hold: limits of pids." in told
    assert "has no quota" in told and not has_quotas(INFO)
    xfs = INFO | {"DriverStatus": [["Backing Filesystem", "xfs"]], "PidsLimit": True}
    assert has_quotas(xfs) and "has a quota" in describe(xfs) and "NOT" not in describe(xfs)


def test_the_event_loop_is_free_while_an_engine_answers() -> None:
    class Slow(DockerEngine):
        def connect(self) -> Any:
            return "the client"

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def ask(api: Any) -> str:  # answers once the loop has had a turn
            return f"{api} and {asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 'the loop'), loop).result(10)}"

        with Slow(threads=1) as engine:
            assert await engine.call(ask) == "the client and the loop"

    asyncio.run(main())


def test_a_container_has_the_limits_that_were_asked_for() -> None:
    limits = SandboxLimits(cpus=0.5, memory_mb=100, pids=9, disk_mb=200, file_mb=3)
    made = host_config(SandboxRequest("i", limits, network="bridge", user="5:6"), quota=True, init=True)
    assert (made["nano_cpus"], made["pids_limit"], made["mem_limit"]) == (500_000_000, 9, "350m")
    assert made["mem_limit"] == made["memswap_limit"], "no swap on top"
    assert "size=200m,uid=5,gid=6" in made["tmpfs"]["/workspace"] and "size=50m" in made["tmpfs"]["/tmp"]
    assert (made["cap_drop"], made["security_opt"], made["network_mode"]) == (["ALL"], ["no-new-privileges"], "bridge")
    assert made["storage_opt"] == {"size": "200m"} and made["ulimits"][0]["Hard"] == 3 << 20
    plain = host_config(SandboxRequest("i"), quota=False, init=False)
    assert plain["network_mode"] == "none" and "storage_opt" not in plain
