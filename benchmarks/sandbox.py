"""What sandboxes cost over the `docker` calls they make: `python benchmarks/sandbox.py [IMAGE]`.

A scripted agent of ten steps (a shell command, a file read, …, as any agent's are) is played three ways by
turns: through sandboxes, and bare, through the SDK alone. Targets: docker_share >= 0.9; warm_start_ms <= 50;
with 16 containers on two cores loop_lag_p99_ms <= 50 and exec_wait_over_fair <= 2. Writes bench-out/sandbox.json.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker

from tunix_core.sandboxes import SandboxLimits, SandboxRequest
from tunix_core.sandboxes.docker import DockerSandboxes
from tunix_core.sandboxes.docker.container import host_config

OUT = Path("bench-out/sandbox.json")
STEPS = (
    ["ls", "-la"],
    ["sh", "-c", "echo 'def f(): return 1' > f.py"],
    ["cat", "f.py"],
    ["sh", "-c", "grep -rn def ."],
    ["sh", "-c", "sed -i 's/1/2/' f.py"],
    ["python3", "-c", "import f; print(f.f())"],
    ["sh", "-c", "seq 2000"],
    ["find", "/usr/share", "-maxdepth", "2"],
    ["sh", "-c", "git init -q . && git add -A"],
    ["git", "status", "--short"],
)
LIMITS = SandboxLimits(cpus=2.0, memory_mb=256, disk_mb=64)
EPISODES = 4  # in one turn
TURNS = 5
WIDE = 16
TIMEOUT_S = 120.0
SAMPLE_S = 0.005


async def ours(sandboxes: DockerSandboxes, request: SandboxRequest) -> None:
    """One episode through sandboxes."""
    sandbox = await sandboxes.open(request)
    for command in STEPS:
        result = await sandbox.exec(command, timeout_s=TIMEOUT_S)
        assert result.ok, result
    await sandbox.close()


def bare(api: Any, request: SandboxRequest) -> None:
    """The same calls, through the SDK alone."""
    made = api.create_container(
        request.image,
        ["sleep", "3600"],
        host_config=api.create_host_config(**{**host_config(request, quota=False, init=True), "auto_remove": False}),
    )["Id"]
    api.start(made)
    for command in STEPS:
        run = api.exec_create(made, command, user=request.user, workdir=request.workdir)["Id"]
        api.exec_start(run)
        assert api.exec_inspect(run)["ExitCode"] == 0, command
    api.remove_container(made, force=True)


async def share(sandboxes: DockerSandboxes, request: SandboxRequest) -> tuple[float, float]:
    """(episodes a minute over those of the bare calls, episodes a minute), the two played by turns, two at a time."""
    api, loop = docker.APIClient(version="auto"), asyncio.get_running_loop()
    ratios, rates = [], []
    with ThreadPoolExecutor(2) as threads:
        for turn in range(TURNS + 1):
            seconds = {}
            for way in ("ours", "bare") if turn % 2 else ("bare", "ours"):
                started, gate = time.perf_counter(), asyncio.Semaphore(2)

                async def one(way: str = way, gate: asyncio.Semaphore = gate) -> None:
                    async with gate:
                        if way == "ours":
                            await ours(sandboxes, request)
                        else:
                            await loop.run_in_executor(threads, bare, api, request)

                await asyncio.gather(*(one() for _ in range(EPISODES)))
                await settled(sandboxes)  # what is made ahead is paid for in its own turn
                seconds[way] = time.perf_counter() - started
            if turn:  # the first is for warming up
                ratios.append(seconds["bare"] / seconds["ours"])
                rates.append(60 * EPISODES / seconds["ours"])
    return statistics.median(ratios), statistics.median(rates)


async def settled(sandboxes: DockerSandboxes) -> None:
    """Waits until nothing is being made ahead."""
    before = -1.0
    await sandboxes.start()
    while (now := sandboxes.statistics()["warm"]) != before or sandboxes.statistics()["making"]:
        before = now
        await asyncio.sleep(0.05)


async def starts(sandboxes: DockerSandboxes, request: SandboxRequest) -> tuple[float, float]:
    """Milliseconds of a warm and of a cold start."""
    warm, cold = [], []
    for number in range(8):
        await settled(sandboxes)
        assert sandboxes.statistics()["warm"] >= 1
        started = time.perf_counter()
        sandbox = await sandboxes.open(request)
        warm.append(time.perf_counter() - started)
        await sandbox.close()
        other = SandboxRequest(request.image, LIMITS, env=(("COLD", str(number)),))  # nobody asked for this one yet
        started = time.perf_counter()
        sandbox = await sandboxes.open(other)
        cold.append(time.perf_counter() - started)
        await sandbox.close()
    return 1000 * statistics.median(warm), 1000 * statistics.median(cold)


async def crowd(sandboxes: DockerSandboxes, request: SandboxRequest) -> tuple[float, float]:
    """(p99 of the loop's lag in ms, longest exec over its fair share), with WIDE containers busy at once.

    Of WIDE who ask for the same at the same time, each has its fair share when all are served in the mean time
    that a round takes.
    """
    opened = await asyncio.gather(*(sandboxes.open(request) for _ in range(WIDE)))
    lags: list[float] = []
    watching = asyncio.ensure_future(watch(lags))
    waits: list[float] = []
    for _ in range(6):
        started = time.perf_counter()

        async def one(sandbox: Any, started: float = started) -> float:
            await sandbox.exec(["python3", "-c", "sum(range(300_000))"], timeout_s=TIMEOUT_S)
            return time.perf_counter() - started

        took = await asyncio.gather(*(one(sandbox) for sandbox in opened))
        waits.append(max(took) / statistics.mean(took))
    watching.cancel()
    await asyncio.gather(*(sandbox.close() for sandbox in opened))
    return 1000 * statistics.quantiles(lags, n=100)[98], statistics.median(waits)


async def watch(lags: list[float]) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(SAMPLE_S)
        lags.append(time.perf_counter() - started - SAMPLE_S)


async def measure(image: str) -> dict[str, float]:
    request = SandboxRequest(image, LIMITS)
    sandboxes = DockerSandboxes(max_warm=4)
    try:
        docker_share, episodes_per_minute = await share(sandboxes, request)
        warm_ms, cold_ms = await starts(sandboxes, request)
        lag_ms, over_fair = await crowd(sandboxes, request)
    finally:
        await sandboxes.aclose()
    return {
        "docker_share": round(docker_share, 3),
        "episodes_per_minute": round(episodes_per_minute, 1),
        "warm_start_ms": round(warm_ms, 2),
        "cold_start_ms": round(cold_ms, 1),
        "loop_lag_p99_ms": round(lag_ms, 1),
        "exec_wait_over_fair": round(over_fair, 2),
    }


def main() -> None:
    found = asyncio.run(measure(sys.argv[1] if len(sys.argv) > 1 else "tunix/base:1"))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
