"""What is known of a plugin, and the kinds of things it may register."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tunix_core.specs import (
    AlgorithmSpec,
    CurriculumSpec,
    EngineSpec,
    EnvSpec,
    ModelSpec,
    RewardSpec,
    SandboxSpec,
    ToolSpec,
    TrackerSpec,
)

Spec = (
    EnvSpec
    | ToolSpec
    | RewardSpec
    | AlgorithmSpec
    | ModelSpec
    | EngineSpec
    | SandboxSpec
    | CurriculumSpec
    | TrackerSpec
)
PluginStatus = Literal["ok", "blocked", "incompatible", "failed"]
Phase = Literal["", "find", "version", "namespace", "import", "validate", "register"]

KINDS: Mapping[str, type] = {
    "envs": EnvSpec,
    "tools": ToolSpec,
    "rewards": RewardSpec,
    "algorithms": AlgorithmSpec,
    "models": ModelSpec,
    "engines": EngineSpec,
    "sandboxes": SandboxSpec,
    "curricula": CurriculumSpec,
    "trackers": TrackerSpec,
}


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One plugin: a distribution, or a file the user named.

    Attributes:
        name: the distribution's name, or the file's stem.
        distribution: the distribution's name; "" for a file.
        version: the distribution's version; "" for a file.
        source: the modules its entry points name, or the file's path.
        namespaces: the first parts its ids may have.
        status: "ok", "blocked" (the user disabled it), "incompatible" (it wants another core), "failed".
        phase: where it failed: "find", "version", "namespace", "import", "validate" or "register".
        error: what went wrong, in one line; "" when nothing did.
        import_ms: how long importing it took; 0 when it was not imported.
    """

    name: str
    source: str
    namespaces: tuple[str, ...]
    distribution: str = ""
    version: str = ""
    status: PluginStatus = "ok"
    phase: Phase = ""
    error: str = ""
    import_ms: float = 0.0

    @property
    def is_file(self) -> bool:
        """True for a file the user named, False for an installed distribution."""
        return not self.distribution

    @property
    def title(self) -> str:
        """How messages call it: "tunix-env-math 0.1.0", or "file my_rewards.py"."""
        return f"file {self.source}" if self.is_file else f"{self.name} {self.version}".strip()

    @property
    def complaint(self) -> str:
        """Why it cannot be used, in one line."""
        if self.status == "failed":
            return f"{self.title} failed ({self.phase}): {self.error}"
        return f"{self.title} is {self.status}: {self.error}"


def describe_spec(spec: Spec) -> dict[str, Any]:
    """The spec's content as plain values, by field name. Survives JSON for every registered spec."""
    content = {field.name: getattr(spec, field.name) for field in fields(spec)}
    content["options"] = {name: asdict(option) for name, option in spec.options.items()}
    if isinstance(spec, EnvSpec):
        content["timeouts"] = asdict(spec.timeouts)
    return content


def hash_spec(spec: Spec) -> str:
    """sha256 of the spec's type and content, as hex; the same on every machine."""
    text = json.dumps([type(spec).__name__, describe_spec(spec)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
