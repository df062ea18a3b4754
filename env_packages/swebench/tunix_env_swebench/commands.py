"""`tunix swebench`: builds images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tunix_env_swebench.mini import DATA
from tunix_env_swebench.rows import Row
from tunix_env_swebench.tasks import MINI, load_rows


@click.group("swebench")
def swebench_group() -> None:
    """Prepares what the swebench suites run in."""


@swebench_group.command("build")
@click.argument("source", default=MINI)
@click.option("--base", required=True, metavar="IMAGE", help="An image with python3, pip, git, bash and patch.")
@click.option("--only", multiple=True, metavar="ID", help="Builds this row alone; repeatable.")
@click.option("--again", is_flag=True, help="Builds images that are there already, too.")
def build_command(source: str, base: str, only: tuple[str, ...], again: bool) -> None:
    """Builds the images of SOURCE: "mini", or a file of rows that say where their repositories come from.

    What is needed is fetched on this machine and copied in; the build has no network. A row whose source
    can't be had is skipped by name, and the exit code is 1.
    """
    rows = _rows(source, only)
    client = docker_client()
    failed = [row.instance_id for row in rows if not _built(client, row, base, _folder(source), again)]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(rows)} images were not built: {', '.join(failed)}")


def _rows(source: str, only: Sequence[str]) -> list[Row]:
    try:
        rows = load_rows(source)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    known = {row.instance_id for row in rows}
    if unknown := [name for name in only if name not in known]:
        raise click.ClickException(f"{source} has no row {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return [row for row in rows if not only or row.instance_id in only]


def _folder(source: str) -> Path:
    return DATA if source == MINI else Path(source).resolve().parent


def docker_client() -> Any:
    """A docker client. Raises ClickException when the SDK or the engine is missing, with what to do."""
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as error:
        raise click.ClickException(
            "this needs the docker SDK. Try: pip install 'tunix-env-swebench[docker]'"
        ) from error
    try:
        client = docker.from_env(timeout=600)
        client.ping()
    except DockerException as error:
        raise click.ClickException(f"no Docker engine answers: {error}. Start one, or set DOCKER_HOST") from error
    return client


def _built(client: Any, row: Row, base: str, folder: Path, again: bool) -> bool:
    from tunix_env_swebench.building import BuildError, SourceError, build, is_built

    if not again and is_built(client, row):
        click.echo(f"{row.instance_id}: {row.image_name} is there")
        return True
    try:
        click.echo(f"{row.instance_id}: {build(client, row, base, folder)} built")
    except (BuildError, SourceError) as error:
        click.echo(f"{row.instance_id}: skipped: {error}", err=True)
        return False
    return True
