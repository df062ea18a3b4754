"""Every extension point, on one screen.

A plugin implements any of these with `tunix_core.hookimpl` and announces its module in the
entry-point group "tunix". `register` in the first block is `(spec) -> None`; see `specs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

PROJECT = "tunix"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
Register = Callable[[Any], None]


# Registration: what exists. Specs are descriptions; nothing behind them is imported.
@hookspec
def tunix_register_envs(register: Register) -> None: ...
@hookspec
def tunix_register_tools(register: Register) -> None: ...
@hookspec
def tunix_register_rewards(register: Register) -> None: ...
@hookspec
def tunix_register_algorithms(register: Register) -> None: ...
@hookspec
def tunix_register_models(register: Register) -> None: ...
@hookspec
def tunix_register_engines(register: Register) -> None: ...
@hookspec
def tunix_register_sandboxes(register: Register) -> None: ...
@hookspec
def tunix_register_curricula(register: Register) -> None: ...
@hookspec
def tunix_register_trackers(register: Register) -> None: ...
@hookspec
def tunix_register_commands(cli: Any) -> None: ...


# Decisions: the first plugin that answers something other than None decides.
@hookspec(firstresult=True)
def tunix_make_env(spec: Any, task: Any) -> Any: ...
@hookspec(firstresult=True)
def tunix_resolve_image(image: str, platform: str) -> str | None: ...
@hookspec(firstresult=True)
def tunix_review_tool_call(ctx: Any, call: Any) -> str | None: ...  # a reason refuses the call
@hookspec(firstresult=True)
def tunix_infra_failure(ctx: Any, error: Any) -> str | None: ...  # "retry" | "drop"


# Observers: one that raises is reported, and the run goes on. Per episode or step, never per token.
@hookspec
def tunix_episode_start(ctx: Any, task: Any) -> None: ...
@hookspec
def tunix_step(ctx: Any, action: Any, result: Any) -> None: ...
@hookspec
def tunix_episode_end(ctx: Any, trajectory: Any) -> None: ...
@hookspec
def tunix_trajectory_scored(ctx: Any, trajectory: Any, score: Any) -> None: ...
@hookspec
def tunix_group_ready(ctx: Any, group: Any) -> None: ...
@hookspec
def tunix_train_step(ctx: Any, metrics: Any) -> None: ...
@hookspec
def tunix_weights_published(ctx: Any, version: int) -> None: ...
@hookspec
def tunix_checkpoint_saved(ctx: Any, path: Any) -> None: ...
@hookspec
def tunix_audit_reward(ctx: Any, trajectory: Any) -> list[str]: ...  # flags, counted in the metrics
