"""`tunix hub` and `tunix plugins`: what is installed. They never import what is behind an id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher
from typing import Any

import click

from tunix_core.cli.options import chosen_plugins, json_option, plugin_option
from tunix_core.cli.output import print_json, print_table, text
from tunix_core.errors import UnknownIdError
from tunix_core.plugins import KINDS, Hub, Spec, describe_spec


@click.group("hub")
def hub_group() -> None:
    """Lists and explains what the installed plugins offer."""


@hub_group.command("list")
@click.argument("kind", required=False, type=click.Choice(list(KINDS)))
@json_option
@plugin_option
@click.pass_context
def list_command(ctx: click.Context, kind: str | None, as_json: bool, plugins: tuple[str, ...]) -> None:
    """Lists everything of a KIND, or of all kinds."""
    hub = chosen_plugins(ctx, plugins).load_hub()
    rows = [_listed(hub, k, spec) for k in ([kind] if kind else KINDS) for spec in hub.list(k)]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("id", "kind", "summary", "package"), [(r["id"], r["kind"], r["summary"], r["package"]) for r in rows]
        )
    broken = [record.name for record in hub.records if record.status in ("failed", "incompatible")]
    if broken:
        click.echo(f"left out: {', '.join(broken)}; `tunix plugins` says why", err=True)


@hub_group.command("show")
@click.argument("id")
@json_option
@plugin_option
@click.pass_context
def show_command(ctx: click.Context, id: str, as_json: bool, plugins: tuple[str, ...]) -> None:
    """Explains one ID: its package, options and scores. A family's members are listed."""
    hub = chosen_plugins(ctx, plugins).load_hub()
    found = [_shown(hub, kind, spec) for kind, spec in _search(hub, id)]
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
        return
    for content in found:
        _print_shown(content)


@click.command("plugins")
@json_option
@plugin_option
@click.pass_context
def plugins_command(ctx: click.Context, as_json: bool, plugins: tuple[str, ...]) -> None:
    """Lists every plugin with its state, import time and error."""
    records = chosen_plugins(ctx, plugins).load_hub().records
    if as_json:
        print_json([asdict(record) for record in records])
        return
    columns = ("plugin", "version", "status", "namespaces", "import ms", "error")
    shown = [(r.name, r.version, r.status, ", ".join(r.namespaces), r.import_ms, _reason(r)) for r in records]
    print_table(columns, shown)


def _reason(record: Any) -> str:
    return f"{record.phase}: {record.error}" if record.phase else record.error


def _owner(hub: Hub, kind: str, spec: Spec) -> dict[str, str]:
    record = hub.owner_of(kind, spec)
    return {"package": record.name, "version": record.version, "source": record.source}


def _listed(hub: Hub, kind: str, spec: Spec) -> dict[str, Any]:
    return {"id": spec.id, "kind": kind, "summary": spec.summary} | _owner(hub, kind, spec)


def _search(hub: Hub, id: str) -> Sequence[tuple[str, Spec]]:
    """Everything of that id, or of that bare name, in any kind.

    Raises:
        UnknownIdError: there is none; worded for the kind that has a near id, or else for environments.
        PluginError: its plugin is broken.
    """
    families = [(kind, spec) for kind in KINDS for spec in hub.list(kind) if spec.id == id]
    found = families or list(_resolved(hub, id))
    if not found:
        nearest = max(KINDS, key=lambda kind: _nearness(hub, kind, id))
        hub.resolve(nearest if _nearness(hub, nearest, id) > 0.6 else "envs", id)
    return found


def _resolved(hub: Hub, id: str) -> Iterator[tuple[str, Spec]]:
    for kind in KINDS:
        try:
            yield kind, hub.resolve(kind, id)
        except UnknownIdError:
            continue


def _nearness(hub: Hub, kind: str, id: str) -> float:
    known = [spec.id if "/" in id else spec.id.partition("/")[2] for spec in hub.list(kind)]
    return max((1.0 if id in name else SequenceMatcher(None, id, name).ratio() for name in known), default=0.0)


def _shown(hub: Hub, kind: str, spec: Spec) -> dict[str, Any]:
    content = {"id": spec.id, "kind": kind} | _owner(hub, kind, spec) | describe_spec(spec)
    content.pop("members", None)  # the spec's own is where to find them
    return content | {"members": list(hub.members(kind, spec.id))} if spec.id.endswith("/*") else content


def _print_shown(content: dict[str, Any]) -> None:
    options, members = content.pop("options"), content.pop("members", [])
    if "timeouts" in content:
        content["timeouts"] = ", ".join(f"{name} {text(value)}" for name, value in content["timeouts"].items())
    rows = [(name.replace("_", " "), _plain(value)) for name, value in content.items() if name != "id"]
    print_table(("id", content["id"]), rows)
    if options:
        print_table(
            ("option", "default", "help"), [(name, repr(o["default"]), o["help"]) for name, o in options.items()]
        )
    if members:
        print_table(("members",), [(member,) for member in members])


def _plain(value: Any) -> Any:
    return ", ".join(text(item) for item in value) if isinstance(value, tuple) else value
