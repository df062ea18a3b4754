"""A process that holds many sandboxes, each busy; it is to be killed. `trainer.py IMAGE NUMBER`."""

from __future__ import annotations

import asyncio
import sys

from tunix_core.sandboxes import SandboxLimits, SandboxRequest
from tunix_core.sandboxes.docker import DockerSandboxes


async def main(image: str, number: int) -> None:
    sandboxes = DockerSandboxes(max_warm=2)
    request = SandboxRequest(image, SandboxLimits(cpus=0.1, memory_mb=64, disk_mb=16))
    opening = [asyncio.ensure_future(sandboxes.open(request)) for _ in range(number)]
    await asyncio.wait(opening, return_when=asyncio.FIRST_COMPLETED)
    print("the first is open", flush=True)
    opened = await asyncio.gather(*opening)
    episodes = [asyncio.ensure_future(each.exec(["sleep", "600"], timeout_s=600)) for each in opened]
    for sandbox in opened:
        await sandbox.exec(["true"], timeout_s=60)
    print("all are running", flush=True)
    await asyncio.gather(*episodes)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
