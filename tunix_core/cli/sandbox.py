"""`tunix sandbox`: what runs hold of containers and directories, and what dead ones left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tunix_core.cli.options import json_option
from tunix_core.cli.output import print_json, print_table

COLUMNS = ("kind", "id", "image", "owner", "age_s", "state")


@click.group("sandbox")
def sandbox_group() -> None:
    """Lists the sandboxes of all runs, and clears what dead runs left."""


@sandbox_group.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """Lists them. A sandbox is live, orphan (its run is gone), or elsewhere (its run is on another machine)."""
    from tunix_core.run.sandboxes import list_sandboxes

    _print(list_sandboxes(), as_json)


@sandbox_group.command("cleanup")
@json_option
def cleanup_command(as_json: bool) -> None:
    """Removes those whose run is gone; never one of a live run. Every run does it when it starts."""
    from tunix_core.run.sandboxes import cleanup_sandboxes

    _print(cleanup_sandboxes(), as_json)


def _print(found: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json([dict(each) for each in found])
    elif found:
        print_table(COLUMNS, [(each["kind"], each["id"][:19], *(each[name] for name in COLUMNS[2:])) for each in found])
    else:
        click.echo("none")
