"""Whole runs for the pipeline's benchmark, with rooms replaced where it says so, and what their spans say."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import tunix_core.trainer
from tunix_core.config import load_config
from tunix_core.contracts import Weights
from tunix_core.plugins import Hub
from tunix_core.profiling import SpanRecord, covered_ns, read_spans
from tunix_core.reporting import read_rows
from tunix_core.run import train
from tunix_core.run.barriers import by_kind, shares
from tunix_core.types import Group

HERE = Path(__file__).parent
RUNS = HERE.parent / "bench-out" / "pipeline-runs"
ENV = HERE / "pipeline_env.py"
CONCURRENT, GROUP, TURNS, TOKENS = 256, 8, 3, 32
ENGINE = "engines/slots"
WORKERS = min(2, os.cpu_count() or 1)  # one decode loop of a model this small keeps one core busy
EDGE = 0.1  # of a run, at its beginning and at its end, that is left out


class FreeLearner:
    """A learner that learns nothing, at no cost: every step publishes the same parameters anew."""

    def __init__(self, model: Any, params: Any, *_: Any, **__: Any) -> None:
        self.version, self._params = 0, params

    def accumulate(self, group: Group) -> None:
        pass

    def apply(self) -> Mapping[str, float]:
        self.version += 1
        return {}

    def weights(self) -> Weights:
        return Weights(self.version, self._params)

    def warm_up(self) -> None:
        pass

    def memory(self) -> Mapping[str, int]:
        return {}

    def state(self) -> Any:
        return tunix_core.trainer.TrainerState(self._params, (), self.version)


class NoCheckpoints:
    """Saves nothing."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        self._path = path

    def latest(self) -> None:
        return None

    def save(self, *_: Any, **__: Any) -> Path:
        return self._path


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        cpu: (time of `time.time_ns`, CPU seconds of this process until then), now and then.
        peak_mb: the process's largest resident size so far.
    """

    path: Path
    summary: Mapping[str, Any]
    cpu: Sequence[tuple[int, float]]
    peak_mb: float

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        return list(read_rows(self.path))

    @cached_property
    def spans(self) -> list[SpanRecord]:
        return list(read_spans(self.path / "spans"))

    @cached_property
    def window(self) -> tuple[int, int]:
        """From the first episode to the last row, without the edges."""
        start = min(span.start_ns for span in self.spans if span.name == "episode")
        end = int(self.rows[-1]["until_s"] * 1e9)
        cut = int(EDGE * (end - start))
        return start + cut, end - cut

    @property
    def window_s(self) -> float:
        return (self.window[1] - self.window[0]) / 1e9

    @cached_property
    def shares(self) -> dict[str, float]:
        return shares(by_kind(self.spans), *self.window)

    def cpu_us_per_step(self, window: tuple[int, int]) -> float:
        """CPU microseconds of this process per step of an environment, within a window."""
        inside = [(at, used) for at, used in self.cpu if window[0] <= at <= window[1]]
        (since, before), (until, after) = inside[0], inside[-1]
        steps = sum(span.name == "env.step" and since <= span.end_ns < until for span in self.spans)
        return 1e6 * (after - before) / max(1, steps)

    @property
    def episodes_per_s(self) -> float:
        since, until = self.window
        return sum(s.name == "episode" and since <= s.end_ns < until for s in self.spans) / self.window_s

    def most_at_once(self, name: str) -> int:
        """How many spans of that name were open at once, at most."""
        return max(many for _, many in self._at_once(name))

    def nearly(self, many: int, name: str) -> tuple[int, int]:
        """From when, and until when, at least 98 of a hundred of so many spans of that name are open at once."""
        full = [at for at, going in self._at_once(name) if going >= 0.98 * many]
        return full[0], full[-1]

    def _at_once(self, name: str) -> list[tuple[int, int]]:
        """When a span of that name began or ended, and how many were open then."""
        changes = sorted(
            (at, change) for s in self.spans if s.name == name for at, change in ((s.start_ns, 1), (s.end_ns, -1))
        )
        return list(zip((at for at, _ in changes), accumulate(change for _, change in changes), strict=True))

    def mean_s(self, *names: str) -> float:
        """Mean seconds an episode that began and ended in the run spends under these names."""
        lasted = sum(s.duration_s for s in self.spans if s.name in names and s.error is None)
        return lasted / max(1, sum(s.name == "episode" and s.error is None for s in self.spans))

    def work_s(self, *names: str) -> float:
        """Seconds under these names per episode that ended, both within the window."""
        intervals = [(s.start_ns, s.end_ns) for s in self.spans if s.name in names]
        return covered_ns(intervals, *self.window) / 1e9 / self.window_s / self.episodes_per_s


def whole_run(name: str, text: str, *, free: bool = False) -> Run:
    """Trains as the configuration says.

    Args:
        name: of the run's directory, which is replaced.
        free: the trainer costs nothing, and nothing is saved.
    """
    path = RUNS / name
    shutil.rmtree(path, ignore_errors=True)
    config = load_config(None, text=f'run_dir = "{path}"\n{text}')
    hub = Hub.load(files=[ENV])
    with ExitStack() as stack, sampled_cpu() as cpu:
        if free:
            stack.enter_context(replaced(tunix_core.trainer, "Trainer", FreeLearner))
            stack.enter_context(replaced(tunix_core.trainer, "Checkpoints", NoCheckpoints))
        result = train(config, hub=hub)
    return Run(path, result.summary, cpu, peak_mb())


def earlier_run(name: str) -> Run:
    """A run that another scenario left behind, without its CPU and memory."""
    path = RUNS / name
    return Run(path, json.loads((path / "summary.json").read_text()), (), 0.0)


def head(
    steps: int,
    *,
    groups: int,
    episodes: int = CONCURRENT,
    staleness: int = 4,
    engine: str = ENGINE,
    context: int = 256,
) -> str:
    """The configuration all scenarios share, without suites."""
    return f"""
model = "pipeline_env/endless"
steps = {steps}
[trainer]
groups_per_step = {groups}
rows = 1
row_tokens = {2 * context}
[scheduler]
max_episodes = {episodes}
max_staleness = {staleness}
failure_window = 100000
quarantine_after = 100000
no_signal_steps = 100000
[engine]
id = "{engine}"
slots = {min(64, episodes)}
workers = {WORKERS}
max_context = {context}
prefill_chunk = 16
decode_steps = 16
[checkpoint]
every_steps = 100000
"""


def suite(env: str = "pipeline_env/latency", *, more: str = "", tokens: int = TOKENS, **options: Any) -> str:
    """A [[suite]] of the latency environment."""
    given = ", ".join(f"{name} = {_toml(value)}" for name, value in options.items())
    return f'[[suite]]\nenv = "{env}"\nsampling = {{ max_tokens = {tokens} }}\n{more}\noptions = {{ {given} }}\n'


@contextmanager
def replaced(where: Any, name: str, value: Any) -> Iterator[None]:
    """`where.name` is `value` inside."""
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


@contextmanager
def sampled_cpu(every_s: float = 0.1) -> Iterator[list[tuple[int, float]]]:
    """What `Run.cpu` is."""
    samples, ending = list[tuple[int, float]](), threading.Event()

    def sample() -> None:
        while not ending.wait(every_s):
            samples.append((time.time_ns(), time.process_time()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ending.set()
        thread.join()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def held() -> dict[str, float]:
    """What a process holds: threads, children, descriptors, resident megabytes.

    What was freed goes back to the system first: the allocator keeps hundreds of megabytes of it otherwise.
    """
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    tasks = list(Path("/proc/self/task").iterdir())
    children = sum(len((task / "children").read_text().split()) for task in tasks)
    return {
        "threads": len(tasks),
        "children": children,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
    }


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, list | tuple) else str(value)


__all__ = [
    "CONCURRENT",
    "ENV",
    "GROUP",
    "RUNS",
    "TOKENS",
    "TURNS",
    "Run",
    "earlier_run",
    "head",
    "held",
    "peak_mb",
    "quantile",
    "replaced",
    "suite",
    "whole_run",
]
