"""What this distribution registers."""

from __future__ import annotations

from collections.abc import Callable

from tunix_core import EngineSpec, hookimpl


@hookimpl
def tunix_register_engines(register: Callable[[EngineSpec], None]) -> None:
    register(
        EngineSpec(
            id="engines/slots",
            target="tunix_core.engine:make_engine",
            summary="Continuous batching over slots, with a prefix cache, on this machine's devices",
        )
    )
