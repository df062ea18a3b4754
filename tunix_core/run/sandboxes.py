"""The sandboxes of a run: which suites need them, whether they may have these, and what dead runs left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from tunix_core.config import SandboxConfig, SuiteConfig
from tunix_core.contracts import Sandboxes
from tunix_core.errors import CheckpointError, TunixError, UsageError
from tunix_core.plugins import Hub
from tunix_core.reporting import RunDir
from tunix_core.specs import EnvSpec

ISOLATED = "isolated-sandbox"
LOCK = "lock.json"


class Needing(Protocol):
    """A suite and its environment."""

    @property
    def spec(self) -> EnvSpec: ...
    @property
    def config(self) -> SuiteConfig: ...


def needs_sandbox(spec: EnvSpec) -> bool:
    return bool({"sandbox", ISOLATED} & set(spec.requires))


def make_sandboxes(config: SandboxConfig, suites: Sequence[Needing], hub: Hub) -> Sandboxes | None:
    """The run's sandboxes, not started; None when no suite needs any. The caller closes them.

    Raises:
        UnknownIdError: nothing installed is of this kind.
        UsageError: an option it does not take; or a suite wants isolation, which this kind does not give, and is
            not named in `unisolated`.
    """
    from tunix_core.run.build import check_options

    needing = [suite for suite in suites if needs_sandbox(suite.spec)]
    if not needing:
        return None
    make = hub.load_object("sandboxes", config.kind)
    check_options(make, config.kind, config.options, list(hub.find("sandboxes", config.kind).options))
    found: Sandboxes = make(**config.options, **_resolver(make, hub))
    if not found.isolates:
        for suite in needing:
            _check_allowed(suite, config)
    return found


def _resolver(make: Any, hub: Hub) -> dict[str, Any]:
    """What asks plugins for an image's name, for the kinds that have images."""
    from tunix_core.envs import accepted

    def resolve(image: str, platform: str) -> str | None:
        return hub.hooks.decide("tunix_resolve_image", image=image, platform=platform)

    return accepted(make, {"resolve_image": resolve})


def _check_allowed(suite: Needing, config: SandboxConfig) -> None:
    name = suite.config.name
    if ISOLATED in suite.spec.requires and name not in config.unisolated:
        raise UsageError(
            f"suite {name!r} runs code that nobody vouches for, and {config.kind} does not keep it from this machine. "
            f'Use [sandbox] kind = "sandboxes/docker", or say that you accept it, by name: unisolated = ["{name}"].'
        )


async def start_sandboxes(sandboxes: Sandboxes, run_dir: RunDir) -> str:
    """Starts a run's sandboxes and says what holds.

    Raises:
        CheckpointError: an image of the run that is resumed means another now.
    """
    said = await sandboxes.start()
    for name, was in run_dir.read_json(LOCK).get("images", {}).items():
        now = await sandboxes.identify(name)
        if now != was:
            raise CheckpointError(
                f"image {name!r} was {was} when the run began, and is {now} here. "
                "Get the former back, or start a new run."
            )
    return said


def lock_images(sandboxes: Sandboxes | None, run_dir: RunDir) -> None:
    """Notes in a run's lock which images it opened."""
    if sandboxes is not None and (used := sandboxes.used_images()):
        lock = run_dir.read_json(LOCK)
        run_dir.write_json(LOCK, {**lock, "images": {**lock.get("images", {}), **used}})


def list_sandboxes() -> list[Mapping[str, Any]]:
    """What runs of this machine hold, alive or dead: {"kind", "id", "image", "owner", "age_s", "state"} each."""
    return [*_docker("find"), *_local("find")]


def cleanup_sandboxes() -> list[Mapping[str, Any]]:
    """Removes what dead runs of this machine left, and gives what was removed."""
    return [*_docker("clean"), *_local("clean")]


def _docker(verb: str) -> list[Mapping[str, Any]]:
    """Nothing where there is no engine, or no package to reach it: then nothing can have been left there."""
    try:
        from tunix_core.sandboxes.docker import reaper
        from tunix_core.sandboxes.docker.engine import Engine

        with Engine(threads=1) as engine:
            return [asdict(each) for each in getattr(reaper, verb)(engine)]
    except TunixError:
        return []


def _local(verb: str) -> list[Mapping[str, Any]]:
    from tunix_core.sandboxes import local

    return [asdict(each) for each in getattr(local, verb)()]
