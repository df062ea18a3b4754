"""JAX's profiler during a window of a run, on the clock of the spans."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

CLOCK = "tunix.clock"  # an annotation inside the window that carries the time of the spans' clock
DEVICE, HOST = "/device:", "/host:CPU"


class DeviceSlice(NamedTuple):
    """One operation on a device.

    Attributes:
        track: the device and its line, e.g. "GPU:0 Stream #14".
        start_ns, end_ns: of `time.time_ns`, as `read_spans` has it.
    """

    track: tuple[str, str]
    name: str
    start_ns: int
    end_ns: int


@contextmanager
def jax_window(folder: Path) -> Iterator[None]:
    """Profiles what happens inside, in all threads, and leaves it in `folder`."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # every Python call would be written down, and slow the step down
    with jax.profiler.trace(str(folder), profiler_options=options):
        with jax.profiler.TraceAnnotation(CLOCK, unix_ns=time.time_ns()):
            pass
        yield


def read_window(folder: Path) -> Iterator[DeviceSlice]:
    """What devices did in the windows of a folder; without an accelerator, what XLA's threads did on the host.

    A window that carries no clock is left out.
    """
    for path in sorted(folder.rglob("*.xplane.pb")):
        profile = jax.profiler.ProfileData.from_file(str(path))
        planes = list(profile.planes)
        offset_ns = _offset_ns(planes)
        devices = [plane for plane in planes if plane.name.startswith(DEVICE)]
        if offset_ns is not None:
            for plane in devices or [plane for plane in planes if plane.name == HOST]:
                yield from _slices(plane, offset_ns, only_xla=not devices)


def _offset_ns(planes: Sequence[Any]) -> float | None:
    """What the profile's times lack to be of `time.time_ns`."""
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                if event.name == CLOCK:
                    return int(dict(event.stats)["unix_ns"]) - event.start_ns
    return None


def _slices(plane: Any, offset_ns: float, only_xla: bool) -> Iterator[DeviceSlice]:
    device = plane.name.removeprefix(DEVICE).removeprefix("/host:")
    for number, line in enumerate(plane.lines):
        if only_xla and "xla" not in line.name.lower():
            continue
        track = (device, line.name or f"line {number}")
        for event in line.events:
            if not event.duration_ns:
                continue
            start_ns = int(event.start_ns + offset_ns)
            yield DeviceSlice(track, event.name, start_ns, start_ns + int(event.duration_ns))
