"""What this package registers."""

from __future__ import annotations

from typing import Any

from tunix_core import CurriculumSpec, Option, hookimpl


@hookimpl
def tunix_register_curricula(register: Any) -> None:
    register(
        CurriculumSpec(
            "curricula/frontier",
            "tunix_curricula.frontier:Frontier",
            "tasks of those difficulties whose samples differ most: neither always solved nor never",
            {
                "buckets": Option(8, "into how many the difficulties are divided, at most"),
                "memory": Option(32, "groups over which a bucket's signal is averaged"),
                "floor": Option(0.1, "the least chance of a bucket, relative to the best one's; above 0"),
                "low": Option(0.0, "the score of a failure"),
                "high": Option(1.0, "the score of a success"),
            },
        )
    )
