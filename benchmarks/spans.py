"""What one span costs: `python benchmarks/spans.py`. Targets: 1 µs while recording, 0.25 µs otherwise."""

from __future__ import annotations

import json
import statistics
import timeit

from tunix_core.profiling import recording, span


def one() -> None:
    with span("x"):
        pass


def cost_us() -> float:
    """Median over repetitions of the mean of 10,000 spans."""
    return statistics.median(timeit.repeat(one, number=10_000, repeat=31)) / 10_000 * 1e6


def figures() -> dict[str, float]:
    off_us = cost_us()
    with recording():
        on_us = cost_us()
    return {"span_on_us": round(on_us, 3), "span_off_us": round(off_us, 3)}


if __name__ == "__main__":
    print(json.dumps(figures()))
