"""What this distribution registers."""

from __future__ import annotations

from collections.abc import Callable

from tunix_core import ModelSpec, Option, hookimpl


@hookimpl
def tunix_register_models(register: Callable[[ModelSpec], None]) -> None:
    register(
        ModelSpec(
            id="models/nano",
            target="tunix_models.nano:load",
            summary="A decoder of one to two million weights that plays, counts and calls tools a little",
            options={
                "zero_output": Option(False, "an output layer of zeros: every token is equally likely"),
                "random": Option(None, "a seed: random weights instead of the trained ones"),
            },
        )
    )
