"""Announces the algorithms; nothing behind a target is imported here."""

from __future__ import annotations

from collections.abc import Callable

from tunix_core import AlgorithmSpec, Option, hookimpl

CLIP = {
    "eps_low": Option(0.2, "how far below 1 the ratio may pull"),
    "eps_high": Option(0.2, "how far above 1 the ratio may push"),
}
AGGREGATE = Option("token", '"token": mean over tokens; "sequence": mean over samples of their token means')

ALGORITHMS = (
    AlgorithmSpec(
        "algorithms/grpo",
        "tunix_algorithms.grpo:make_grpo",
        "Group-relative advantages with the clipped ratio",
        {**CLIP, "aggregate": AGGREGATE},
    ),
    AlgorithmSpec(
        "algorithms/sft",
        "tunix_algorithms.sft:make_sft",
        "Supervised: the mean negative log-probability of the trained tokens",
    ),
)


@hookimpl
def tunix_register_algorithms(register: Callable[[AlgorithmSpec], None]) -> None:
    for spec in ALGORITHMS:
        register(spec)
