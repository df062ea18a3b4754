"""What a run depends on, written down so that a resume can tell when it changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tunix_core.config import RunConfig
from tunix_core.contracts import TaskSource
from tunix_core.errors import CheckpointError
from tunix_core.plugins import Hub
from tunix_core.run.build import Bench
from tunix_core.run.sandboxes import needs_sandbox
from tunix_core.tasks import length_of

LOOKED_AT = 64  # tasks of a source whose ids are written down


def make_lock(
    config: RunConfig, benches: Sequence[Bench], hub: Hub, sources: Mapping[str, TaskSource]
) -> dict[str, Any]:
    """Distributions with versions, content hashes of the specs in use, the suites' tasks, and seeds."""
    return {
        "distributions": {name: version for name, version in hub.lock().items() if name in _used(config, hub)},
        "specs": {bench.spec.id: hub.content_hash(bench.spec) for bench in benches},
        "suites": {bench.config.name: dict(bench.options) for bench in benches},
        "tasks": {name: _tasks_of(source) for name, source in sources.items()},
        "curricula": {
            suite.name: {"id": suite.curriculum.id, "options": dict(suite.curriculum.options)}
            for suite in config.suites
            if suite.curriculum
        },
        "seed": config.seed,
        "model": config.model,
        "reference": config.trainer.reference,
    }


def _tasks_of(source: TaskSource) -> str:
    """How many tasks there are, and a hash of the ids of the first: data that changed on disk shows."""
    length = length_of(source)
    count = LOOKED_AT if length is None else min(length, LOOKED_AT)
    ids = json.dumps([source.get(index).id for index in range(count)])
    return f"{'endless' if length is None else length}, {hashlib.sha256(ids.encode()).hexdigest()[:16]}"


def _used(config: RunConfig, hub: Hub) -> set[str]:
    """The core, and the plugins whose ids the run names: others may come and go."""
    ids = [("envs", suite.env) for suite in config.suites]
    ids += [("rewards", part.id) for suite in config.suites for part in suite.rewards if part.id != "env"]
    ids += [("algorithms", suite.algorithm or config.trainer.algorithm) for suite in config.suites]
    ids += [("engines", config.engine.id)]
    ids += [("curricula", suite.curriculum.id) for suite in config.suites if suite.curriculum]
    ids += [("models", config.model)] if config.model in {spec.id for spec in hub.list("models")} else []
    if any(needs_sandbox(hub.find("envs", suite.env)) for suite in config.suites):
        ids.append(("sandboxes", config.sandbox.kind))
    records = [hub.record_of(kind, identity) for kind, identity in ids]
    return {"tunix-core", *(f"file:{record.name}" if record.is_file else record.name for record in records)}


def check_lock(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuses to resume on something else than the run started with.

    Raises:
        CheckpointError: naming each entry that differs.
    """
    changed = [
        f"{part}.{name}: was {before.get(name)!r}, is {after.get(name)!r}"
        for part in ("distributions", "specs", "suites", "tasks", "curricula")
        for before, after in [(saved.get(part, {}), _plain(now[part]))]
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    changed += [
        f"{key}: was {saved.get(key)!r}, is {now[key]!r}"
        for key in ("seed", "model", "reference")
        if saved.get(key) != now[key]
    ]
    if changed:
        raise CheckpointError(
            "the run can't be resumed as it was started: " + "; ".join(changed) + ". Restore these, or start a new run."
        )


def _plain(value: Any) -> Any:
    """As JSON reads it back (tuples become lists)."""
    return json.loads(json.dumps(value, default=str))
