"""Several processes train one policy: the losses are one process's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunix_core.errors import UsageError
from tunix_core.run.hosts import Hosts, hosts_of

SCRIPT = Path(__file__).with_name("hosts_script.py")


def start(process: int, processes: int, port: int) -> subprocess.Popen[str]:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), str(process), str(processes), str(port)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def told(running: subprocess.Popen[str]) -> Any:
    out, errors = running.communicate(timeout=200)
    assert running.returncode == 0, errors[-3000:]
    rows = [line for line in out.splitlines() if line.startswith("{")]  # beside what the collectives say
    return json.loads(rows[0]) if rows else None


def test_two_processes_train_as_one_does() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [start(process, 2, port) for process in range(2)]
    try:
        together, nothing = told(both[0]), told(both[1])
    finally:
        for running in both:
            running.kill()
    alone = told(start(0, 1, port))
    assert nothing is None
    assert (together["devices"], alone["devices"]) == (2, 1)
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert together["norm"] == pytest.approx(alone["norm"], rel=1e-6)
    assert len(set(alone["losses"])) == 3


def test_all_three_are_needed_or_none() -> None:
    assert hosts_of(None, None, None) is None
    assert hosts_of("here:1", 2, 0) == Hosts("here:1", 2, 0)
    with pytest.raises(UsageError, match="need --coordinator, --processes, --process together; --process is"):
        hosts_of("here:1", 2, None)


@pytest.mark.parametrize(
    ("coordinator", "processes", "process", "wrong"),
    [("here", 2, 0, "'here', expected HOST:PORT"), ("h:1", 0, 0, "at least 1"), ("h:1", 2, 2, "expected 0 to 1")],
)
def test_what_can_not_be_is_told(coordinator: str, processes: int, process: int, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        Hosts(coordinator, processes, process)
