"""Trajectories become packed batches, gradients, and new parameters.

Does not know environments, the engine, or where groups come from.
"""

from __future__ import annotations

from tunix_core.trainer.checkpoint import Checkpoints
from tunix_core.trainer.health import drop
from tunix_core.trainer.memory import advised, bytes_of, device_bytes, memory_line
from tunix_core.trainer.packing import Packer, Sample
from tunix_core.trainer.parts import Parts, make_parts
from tunix_core.trainer.trainer import Trainer, TrainerState

__all__ = [
    "Checkpoints",
    "Packer",
    "Parts",
    "Sample",
    "Trainer",
    "TrainerState",
    "advised",
    "bytes_of",
    "device_bytes",
    "drop",
    "make_parts",
    "memory_line",
]
