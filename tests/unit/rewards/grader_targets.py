"""What the tests run in worker processes. Standard library only, but for the reward."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tunix_core.errors import GoldError
from tunix_core.rewards import Episode, reward

calls = 0


class Stubborn(Exception):
    """An exception that pickles, but can't be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def add(a: int, b: int = 0) -> int:
    print("noise on standard output")
    return a + b


def count() -> tuple[int, int]:
    global calls
    calls += 1
    return os.getpid(), calls


def spin() -> None:
    while True:
        pass


def compute_for_ever() -> int:
    return 3 ** (10**10)  # in C, holding the GIL


def spin_first(marker: str) -> int:
    global calls
    calls += 1
    if not Path(marker).exists():
        Path(marker).touch()
        spin()
    return calls


def sleep(seconds: float, marker: str = "") -> float:
    if marker:
        Path(marker).touch()
    time.sleep(seconds)
    return seconds


def start_child() -> tuple[int, int]:
    """The ids of this process and of one that it leaves behind for an hour."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
    return os.getpid(), child.pid


def babble(hexadecimal: str) -> None:
    os.write(int(sys.argv[1]), bytes.fromhex(hexadecimal))


def give(size: int) -> bytes:
    return bytes(size)


def fail_with(size: int) -> None:
    raise ValueError(b"too much", bytearray(size).decode())


def die() -> None:
    os._exit(3)


def fail(kind: str) -> None:
    raise {"gold": GoldError("no gold"), "value": ValueError("no value"), "stubborn": Stubborn(1, 2)}[kind]


def leave() -> None:
    raise SystemExit(2)


def devour() -> int:
    return len(bytearray(4 << 30))


def modules() -> set[str]:
    return {name.split(".")[0] for name in sys.modules}


@reward(range=(-1.0, 1.0), cpu_bound=True, cpu_s=0.3)
def judged(episode: Episode, bonus: float = 0.0) -> float:
    if episode.final_text == "spin":
        spin()
    if episode.final_text == "die":
        os._exit(1)
    if episode.final_text == "slip":
        return {}["answer"]
    if episode.final_text == "gold":
        raise GoldError("the gold is empty")
    return float(os.getpid() != episode.task.payload["pid"]) - bonus
