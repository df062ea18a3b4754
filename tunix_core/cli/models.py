"""`tunix model`: what can be fetched, and fetching it."""

from __future__ import annotations

import click

from tunix_core.cli.options import json_option
from tunix_core.cli.output import print_json, print_table


@click.group("model")
def model_group() -> None:
    """Lists models that can be fetched, and fetches them."""


@model_group.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """Lists the models that are known by name, and every one that was fetched."""
    from tunix_core.run.fetching import list_models

    rows = list_models()
    if as_json:
        print_json(rows)
        return
    columns = ("name", "summary", "licence", "megabytes", "path")
    print_table(columns, [[row[column] for column in columns] for row in rows])
    click.echo("Any other is fetched by its Hugging Face id: tunix model fetch OWNER/NAME")


@model_group.command("fetch")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Agree to the model's licence, where it has one to agree to.")
def fetch_command(name: str, yes: bool) -> None:
    """Fetches the model NAME into the user's cache: one of `tunix model list`, or a Hugging Face id.

    Of a repository of GGUF files, name one: OWNER/NAME/FILE.gguf
    """
    from tunix_core.run.fetching import fetch_model

    def agree(licence: str) -> bool:
        click.echo(licence)
        return yes or click.confirm("Do you agree to this licence?", default=False)

    click.echo(fetch_model(name, agree))
