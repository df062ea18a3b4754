"""tunix, with weights that reach the engine late: `python benchmarks/learning_late.py LAG train CONFIG ...`.

The engine samples with the version of LAG steps ago, so that every token is at least so stale when it is trained.
Whoever asks for a run's last version gets it, so that what is evaluated is what was learned.
"""

from __future__ import annotations

import sys
from collections import deque

from tunix_core import cli, weights
from tunix_core.contracts import Params, Weights

STEPS = 40  # of learning.toml


class LateWeights(weights.WeightStore):
    """A store whose newest version is one that was published LAG publications ago; the first till then."""

    lag = 0

    def __init__(self, version: int, *more: object, **named: object) -> None:
        super().__init__(version, *more, **named)  # type: ignore[arg-type]
        self._kept = deque([super().latest()], maxlen=self.lag + 1)

    def publish(self, version: int, params: Params) -> None:
        super().publish(version, params)
        self._kept.append(super().latest())

    def latest(self) -> Weights:
        return self._kept[-1 if self._kept[-1].version >= STEPS else 0]


def main() -> None:
    LateWeights.lag = int(sys.argv.pop(1))
    weights.WeightStore = LateWeights  # type: ignore[misc]
    cli.main()


if __name__ == "__main__":
    main()
