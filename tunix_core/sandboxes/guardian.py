"""The process behind `owner.Guardian`: waits for its owner's end, then removes what that one left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tunix_core.sandboxes.owner import Owner

_LOOK_S = 1.0
_QUIET = 5  # looks in a row that find nothing, after which nothing is left: a last request may still be under way


def main(kind: str, owner_text: str) -> None:
    owner = Owner.parse(owner_text)
    if owner is None:
        raise SystemExit(f"no owner: {owner_text!r}")
    while owner.alive:
        time.sleep(_LOOK_S)
    reap, quiet = _reaper(kind), 0
    while quiet < _QUIET:
        quiet = 0 if reap() else quiet + 1
        time.sleep(_LOOK_S)


def _reaper(kind: str) -> Callable[[], int]:
    """Imported late: a guardian of a run that ends well never needs it."""
    if kind == "docker":
        from tunix_core.sandboxes.docker.reaper import reap
    else:
        from tunix_core.sandboxes.local import reap
    return reap


if __name__ == "__main__":
    main(*sys.argv[1:])
