"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import click

from tunix_core.config import parse_value
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.specs import Option

F = TypeVar("F", bound=Callable[..., Any])
PLUGIN_HELP = "FILE.py loads a plugin from a file; no:NAME leaves one out. May be repeated."


@dataclass(frozen=True, slots=True)
class PluginArguments:
    """What the `-p` options ask for.

    Attributes:
        files: absolute paths of plugin files, as given in order.
        disabled: names of plugins to leave out.
    """

    files: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()

    @classmethod
    def parse(cls, values: Sequence[str]) -> Self:
        disabled = tuple(value.removeprefix("no:") for value in values if value.startswith("no:"))
        files = tuple(str(Path(value).resolve()) for value in values if not value.startswith("no:"))
        return cls(files, disabled)

    def __add__(self, other: PluginArguments) -> PluginArguments:
        return PluginArguments(self.files + other.files, self.disabled + other.disabled)

    def load_hub(self) -> Hub:
        """What there is, broken plugins among it: to be listed, and for `--help`."""
        return Hub.load(self.files, self.disabled)

    def working_hub(self) -> Hub:
        """What there is, to be used. Raises PluginError when a file that was named can't be."""
        hub = self.load_hub()
        hub.check_files()
        return hub


def plugin_option(command: F) -> F:
    """Adds `-p`, which may stand before or after the command's name."""
    # eager, so that `-p FILE --help` lists the commands of FILE
    option = click.option("-p", "plugins", multiple=True, metavar="FILE|no:NAME", is_eager=True, help=PLUGIN_HELP)
    return option(command)


def chosen_plugins(ctx: click.Context, here: Sequence[str]) -> PluginArguments:
    """The `-p` options before the command's name, and then those after it."""
    return ctx.ensure_object(PluginArguments) + PluginArguments.parse(here)


def option_pairs(options: Sequence[str], known: Mapping[str, Option]) -> dict[str, Any]:
    """The `-o KEY=VALUE` of an environment's options, values as TOML has them; what is a text by default stays one.

    Raises:
        UsageError: one without a key or a value.
    """
    pairs = [option.partition("=") for option in options]
    for option, (key, equals, _) in zip(options, pairs, strict=True):
        if not key or not equals:
            raise UsageError(f"-o {option}: expected KEY=VALUE, e.g. -o level=2")
    return {key: _value(value, known.get(key)) for key, _, value in pairs}


def _value(text: str, option: Option | None) -> Any:
    value = parse_value(text)
    is_text = option is not None and isinstance(option.default, str)
    return value if not is_text or isinstance(value, str | list | dict) else text  # "nan" and "3" are words there


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
