"""`tunix check`: does an environment keep its promises, and can its tasks be solved?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tunix_core.cli.options import chosen_plugins, json_option, option_pairs, plugin_option
from tunix_core.cli.output import print_json, print_table
from tunix_core.config import SandboxConfig
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub


@click.command("check")
@click.argument("env")
@click.option("--gold", is_flag=True, help="Play the tasks' known solutions, in place of random ones.")
@click.option("--n", type=click.IntRange(min=1), help="How many tasks; default: 5, with --gold all.")
@click.option("--runs", default=1, show_default=True, type=click.IntRange(min=1), help="How often, with --gold.")
@click.option("--split", default="eval", show_default=True, type=click.Choice(["train", "eval"]), help="Which tasks.")
@click.option("--seed", default=0, show_default=True, help="Of the tasks.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the ids of tasks that fail, as a JSON list.")
@click.option("--sandbox", "kind", default="sandboxes/docker", show_default=True, help="Where untrusted code runs.")
@click.option("-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the environment; repeatable.")
@json_option
@plugin_option
@click.pass_context
def check_command(
    ctx: click.Context,
    env: str,
    gold: bool,
    n: int | None,
    out: str | None,
    kind: str,
    options: tuple[str, ...],
    as_json: bool,
    plugins: tuple[str, ...],
    **how: Any,
) -> None:
    """Checks the environment ENV.

    Plays a few tasks at random and looks for what every environment promises. With --gold it plays the
    solutions that the environment knows: its gold must get the highest score, doing nothing must not, and
    all runs must agree. Tasks that fail are listed; the exit code is then 1.
    """
    hub = chosen_plugins(ctx, plugins).working_hub()
    spec = hub.resolve("envs", env)
    given = option_pairs(options, spec.options)
    if gold:
        from tunix_core.run.checking import check_solutions

        sandbox = SandboxConfig(kind if "/" in kind else hub.resolve("sandboxes", kind).id)
        found = check_solutions(spec.id, hub=hub, n=n, options=given, sandbox=sandbox, **how)
        _tell(found, out, as_json)
        ctx.exit(int(any(each.problem for each in found)))
    if how["runs"] > 1 or out:
        raise UsageError("--runs and --out belong to --gold")
    _check_promises(hub, spec, n or 5, given, how["split"], how["seed"])


def _check_promises(hub: Hub, spec: Any, n: int, options: Mapping[str, Any], split: Any, seed: int) -> None:
    from tunix_core.config import SuiteConfig
    from tunix_core.run.build import prepare
    from tunix_core.run.sandboxes import needs_sandbox
    from tunix_core.testing.envs import check_env

    if needs_sandbox(spec):
        raise UsageError(f"{spec.id} works in a sandbox, where random play tells little. Check its tasks with --gold")
    try:
        prepare(SuiteConfig(env=spec.id, name=spec.id, split=split, options=dict(options)), hub)
        check_env(spec, n=n, options=options, split=split, seed=seed)
    except AssertionError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{spec.id}: as it should be")


def _tell(found: Sequence[Any], out: str | None, as_json: bool) -> None:
    failed = [each.task for each in found if each.problem]
    if out:
        Path(out).write_text(f"{json.dumps(failed, indent=2)}\n", encoding="utf-8")
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        ("task", "sound", "problem"), [(each.task, "no" if each.problem else "yes", each.problem) for each in found]
    )
    click.echo(f"{len(found) - len(failed)} of {len(found)} tasks are sound")
