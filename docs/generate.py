"""Writes docs/reference from the code: the configuration's keys, and the commands."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from tunix_core.cli.app import OURS
from tunix_core.config import RunConfig
from tunix_core.config.build import toml_name
from tunix_core.config.dump import toml_value

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; `make docs` renews it. -->"
CONFIG_INTRO = """A run is one TOML file. An unknown key or a wrong type is an error with its line.
Every key can be given on the command line: `-o trainer.learning_rate=1e-3`, and
`-o suite.games/frozen-lake.weight=2` for a suite, by its name. Ids are whole: `games/frozen-lake`."""


def main() -> None:
    """Writes every page of the reference."""
    REFERENCE.mkdir(exist_ok=True)
    for name, text in render().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


def render() -> Mapping[str, str]:
    """File name -> content of every page."""
    return {"config.md": config_page(), "commands.md": commands_page()}


# ---- configuration ----
def config_page() -> str:
    sections = "\n".join(_sections(RunConfig, "", "The run"))
    return f"# Configuration\n\n{NOTE}\n\n{CONFIG_INTRO}\n\n{sections}"


def _sections(cls: type, path: str, title: str) -> Iterator[str]:
    """A table of the class's plain keys, then one section for each table it holds."""
    hints, comments = get_type_hints(cls), _comments(cls)
    yield f"## {title}\n\n{_summary(cls)}\n"
    rows, inner = [], []
    for field in fields(cls):
        name, hint = toml_name(cls, field.name), hints[field.name]
        nested = _nested(hint)
        if nested:
            inner.append((nested, f"{path}{name}", get_origin(hint) is tuple))
        if not nested or (get_origin(hint) is tuple and path):
            rows.append((f"`{name}`", _type(hint), _default(field), comments.get(field.name, "")))
    yield _table(("key", "type", "default", ""), rows)
    for nested, full, repeated in inner:
        brackets = f"`[[{full}]]`" if repeated else f"`[{full}]`"
        yield from _sections(nested, f"{full}.", brackets)


def _nested(hint: Any) -> type | None:
    """The dataclass in `X`, `X | None` or `tuple[X, ...]`, if there is one."""
    found = [h for h in (hint, *get_args(hint)) if isinstance(h, type) and is_dataclass(h)]
    return found[0] if found else None


def _summary(cls: type) -> str:
    return inspect.getdoc(cls) or ""


def _comments(cls: type) -> Mapping[str, str]:
    """What follows each field on its line."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    return {
        node.target.id: lines[node.end_lineno - 1][node.end_col_offset :].strip().removeprefix("#").strip()
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno
    }


def _type(hint: Any) -> str:
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return " or ".join(f'`"{choice}"`' for choice in arguments)
    if get_origin(hint) is tuple:
        return f"list of {_type(arguments[0])}"
    if arguments and arguments[-1] is type(None):
        return _type(arguments[0])
    if get_origin(hint) is not None:
        return "table"
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return names.get(hint, "id or table")


def _default(field: Field[Any]) -> str:
    if field.default is MISSING and field.default_factory is MISSING:
        return "required"
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return f"`{toml_value([item.id for item in value])}`"
    return "" if value is None else f"`{toml_value(value)}`"


# ---- commands ----
def commands_page() -> str:
    sections = "\n".join(part for name, command in OURS.items() for part in _command(f"tunix {name}", command))
    return f"# Commands\n\n{NOTE}\n\nPlugins may add more; `tunix --help` lists them all.\n\n{sections}"


def _command(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"## `{path}`\n\n{inspect.cleandoc(command.help or '')}\n"
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _command(f"{path} {name}", inner)
        return
    yield f"```\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    rows = [_option(option) for option in command.params if isinstance(option, click.Option)]
    yield _table(("option", "default", ""), rows)


def _option(option: click.Option) -> tuple[str, str, str]:
    given = option.metavar or "" if not option.is_flag else ""
    names = ", ".join(option.opts)
    default = f"`{option.default}`" if option.show_default else ""
    return f"`{names} {given}`".replace(" `", "`"), default, option.help or ""


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [header, ("---",) * len(header), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
