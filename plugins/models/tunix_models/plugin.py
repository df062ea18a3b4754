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
    dtype = {"dtype": Option("float32", "of weights and computation: float32, bfloat16 or float16")}
    register(
        ModelSpec(
            id="models/smollm2-135m",
            target="tunix_models.fetched:smollm2_135m",
            summary="SmolLM2 135M Instruct; first: tunix model fetch smollm2-135m",
            options=dtype,
        )
    )
    register(
        ModelSpec(
            id="models/gemma3-270m",
            target="tunix_models.fetched:gemma3_270m",
            summary="Gemma 3 270M, a base model; first: tunix model fetch gemma3-270m",
            options=dtype,
        )
    )
