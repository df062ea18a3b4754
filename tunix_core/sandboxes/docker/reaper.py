"""Finds the containers of runs, and removes those whose run is gone."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from tunix_core.sandboxes.docker.engine import Engine, Missing, remove_container
from tunix_core.sandboxes.owner import Found, Owner, state_of

OWNER = "tunix.owner"


def find(engine: Engine) -> list[Found]:
    """Everything that carries the label, of whatever run."""
    labelled = {"label": OWNER}
    containers = engine.call_here(lambda api: api.containers(all=True, filters=labelled))
    images = engine.call_here(lambda api: api.images(all=True, filters=labelled))
    return [_found("container", each) for each in containers] + [_found("image", each) for each in images]


def _found(kind: str, given: dict[str, Any]) -> Found:
    text = (given.get("Labels") or {}).get(OWNER, "")
    image = given["Image"] if kind == "container" else given["Id"]
    return Found(kind, given["Id"], image, text, time.time() - given["Created"], state_of(Owner.parse(text)))


def clean(engine: Engine) -> list[Found]:
    """Removes what dead runs of this machine left; never what is another live run's."""
    orphans = [each for each in find(engine) if each.state == "orphan"]
    for orphan in orphans:
        remove(engine, orphan)
    return orphans


def remove(engine: Engine, found: Found) -> None:
    if found.kind == "container":
        engine.call_here(lambda api: remove_container(api, found.id))
        return
    with suppress(Missing):
        engine.call_here(lambda api: api.remove_image(found.id, force=True))


def remove_images(engine: Engine, owner: Owner) -> None:
    """Removes the images that an owner kept."""
    for found in find(engine):
        if found.kind == "image" and found.owner == str(owner):
            remove(engine, found)


def reap() -> int:
    """What a guardian does; gives how many were removed."""
    with Engine(threads=1) as engine:
        return len(clean(engine))
