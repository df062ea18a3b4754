"""Tables and JSON on standard output."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 200  # columns where the output is not a terminal, so that lines stay whole for grep


def print_json(value: Any) -> None:
    """Strict JSON: an unbounded or undefined number is null."""
    click.echo(json.dumps(_strict(value), indent=2))


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """The first column is never wrapped."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(text(value) for value in row))
    console().print(table)


def console() -> Console:
    found = Console(markup=False, highlight=False)
    return found if found.is_terminal else Console(markup=False, highlight=False, width=WIDE)


def text(value: Any) -> str:
    """A value for people: numbers short, nothing as a dash."""
    if value is None or value == "":
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
