"""The group of all commands: ours, and those that plugins add. Turns errors into one line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from tunix_core import __version__
from tunix_core.cli.check import check_command
from tunix_core.cli.hub import hub_group, plugins_command
from tunix_core.cli.models import model_group
from tunix_core.cli.options import PluginArguments, plugin_option
from tunix_core.cli.runs import eval_command, export_command, trace_command, train_command
from tunix_core.cli.sandbox import sandbox_group
from tunix_core.errors import RunEnded, TunixError, UsageError

INTERRUPTED = 130
_ADDED = f"{__name__}.added"
OURS = {
    "hub": hub_group,
    "plugins": plugins_command,
    "train": train_command,
    "eval": eval_command,
    "check": check_command,
    "export": export_command,
    "trace": trace_command,
    "model": model_group,
    "sandbox": sandbox_group,
}


class _PluginCommands(click.Group):
    """What plugins add commands to; a name can be taken once."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        name = name or cmd.name or ""
        if name in OURS or name in self.commands:
            raise UsageError(f"there is a command {name!r} already; give this one another name")
        super().add_command(cmd, name)


class _Commands(click.Group):
    """Our commands first; plugins are loaded only when a name is not ours, or for the list of all."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return OURS.get(cmd_name) or self._of_plugins(ctx).commands.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*OURS, *sorted(self._of_plugins(ctx).commands)]

    def _of_plugins(self, ctx: click.Context) -> _PluginCommands:
        if _ADDED not in ctx.meta:
            ctx.meta[_ADDED] = _PluginCommands("plugins")
            chosen = PluginArguments.parse(ctx.params.get("plugins", ()))
            chosen.load_hub().hooks.notify("tunix_register_commands", cli=ctx.meta[_ADDED])
        return ctx.meta[_ADDED]


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tunix")
@plugin_option
@click.pass_context
def app(ctx: click.Context, plugins: tuple[str, ...]) -> None:
    """A hub of environments, and a trainer that learns on them."""
    ctx.obj = PluginArguments.parse(plugins)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs `tunix` with the given arguments (default: the process's) and exits.

    The exit code is 0, 2 when the user can fix it, 3 when a run ended itself, 130 when it was
    interrupted, and 1 for every other failure. TUNIX_DEBUG=1 shows tracebacks.
    """
    debug = os.environ.get("TUNIX_DEBUG", "") not in ("", "0")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("tunix_core").setLevel(logging.DEBUG if debug else logging.WARNING)
    try:
        code = app.main(args=None if arguments is None else list(arguments), prog_name="tunix", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except TunixError as error:
        if debug:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 3 if isinstance(error, RunEnded) else 1)
    sys.exit(code or 0)
