"""`tunix train`, `tunix eval`, `tunix export` and `tunix trace`: parse, call `run`, print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tunix_core.cli.options import PluginArguments, chosen_plugins, json_option, option_pairs, plugin_option
from tunix_core.cli.output import print_json, print_table, text
from tunix_core.config import EngineConfig, PluginsConfig, RewardConfig, SandboxConfig, load_config
from tunix_core.errors import UnknownIdError, UsageError
from tunix_core.plugins import Hub


@click.command("train")
@click.argument("config", type=click.Path())
@click.option("-o", "overrides", multiple=True, metavar="KEY=VALUE", help="Overrides a key of the config; repeatable.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint of the run directory.")
@click.option("--overwrite", is_flag=True, help="Replace what the run directory holds.")
@click.option("--strict-plugins", is_flag=True, help="Any broken plugin is an error, used or not.")
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    envvar="JAX_COORDINATOR_ADDRESS",
    help="On several hosts: where process 0 listens; default: JAX_COORDINATOR_ADDRESS.",
)
@click.option("--processes", type=int, envvar="JAX_NUM_PROCESSES", help="How many; default: JAX_NUM_PROCESSES.")
@click.option("--process", type=int, envvar="JAX_PROCESS_ID", help="This one, from 0; default: JAX_PROCESS_ID.")
@plugin_option
@click.pass_context
def train_command(
    ctx: click.Context,
    config: str,
    overrides: tuple[str, ...],
    resume: bool,
    overwrite: bool,
    strict_plugins: bool,
    plugins: tuple[str, ...],
    **which: Any,
) -> None:
    """Trains as the file CONFIG says.

    A suite's keys are reached by its name: -o suite.games/frozen-lake.weight=2

    On several hosts the same command runs on each, with its own --process.
    """
    if resume and overwrite:
        raise UsageError("--resume goes on with a run and --overwrite deletes it; give one of them")
    from tunix_core import run

    loaded = load_config(Path(config), overrides)
    loaded = replace(loaded, plugins=_merge(loaded.plugins, chosen_plugins(ctx, plugins), strict_plugins))
    hub = _load_for_run(loaded.plugins)
    how = {"resume": resume, "overwrite": overwrite, "config_name": Path(config).stem, "hosts": run.hosts_of(**which)}
    result = run.train(loaded, hub=hub, **how)
    ctx.exit(result.exit_code)


@click.command("eval")
@click.argument("env")
@click.option("--model", default="models/nano", show_default=True, help="An id, a run directory, or an exported one.")
@click.option("--n", default=100, show_default=True, type=click.IntRange(min=1), help="How many tasks.")
@click.option("--seed", default=0, show_default=True, help="Of the tasks and the sampling.")
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(min=0), help="0 is greedy.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(min=1), help="Tokens a turn may have.")
@click.option(
    "--max-context", default=512, show_default=True, type=click.IntRange(min=2), help="Tokens a conversation may have."
)
@click.option("--split", default="eval", show_default=True, type=click.Choice(["train", "eval"]), help="Which tasks.")
@click.option(
    "--reward", "rewards", multiple=True, metavar="ID", help="Score with this instead of the environment's own."
)
@click.option("-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the environment; repeatable.")
@click.option("--sandbox", "kind", default="sandboxes/docker", show_default=True, help="Where untrusted code runs.")
@click.option("--unisolated", multiple=True, metavar="ENV", help="An environment that may run unisolated; repeatable.")
@json_option
@plugin_option
@click.pass_context
def eval_command(
    ctx: click.Context,
    env: str,
    rewards: tuple[str, ...],
    options: tuple[str, ...],
    kind: str,
    unisolated: tuple[str, ...],
    max_context: int,
    as_json: bool,
    plugins: tuple[str, ...],
    **how: Any,
) -> None:
    """Scores a model on the environment ENV. Exits with 1 where no episode got a score."""
    from tunix_core import run

    chosen = chosen_plugins(ctx, plugins)
    hub = _load_for_run(PluginsConfig(files=chosen.files, disabled=chosen.disabled))
    parts = [RewardConfig(reward if reward == "env" else hub.resolve("rewards", reward).id) for reward in rewards]
    how |= {"model": _whole(hub, how["model"]), "engine": EngineConfig(max_context=max_context)}
    how["sandbox"] = SandboxConfig(
        hub.resolve("sandboxes", kind).id if "/" not in kind else kind, unisolated=unisolated
    )
    spec = hub.resolve("envs", env)
    found = run.evaluate(spec.id, hub=hub, options=option_pairs(options, spec.options), rewards=parts, **how)
    if as_json:
        print_json(found)
    else:
        print_table(("result", ""), list(_rows(found)))
    ctx.exit(1 if found["mean"] is None else 0)


@click.command("export")
@click.argument("run_dir", metavar="RUN")
@click.argument("target", metavar="DIR", type=click.Path())
@plugin_option
@click.pass_context
def export_command(ctx: click.Context, run_dir: str, target: str, plugins: tuple[str, ...]) -> None:
    """Writes the newest weights of RUN (or RUN@STEP), tokenizer and chat format to DIR."""
    from tunix_core import run

    click.echo(run.export(run_dir, target, hub=chosen_plugins(ctx, plugins).working_hub()))


@click.command("trace")
@click.argument("run_dir", metavar="RUN", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: RUN/trace.perfetto-trace.")
def trace_command(run_dir: Path, output: Path | None) -> None:
    """Writes where the time of RUN went as a file for https://ui.perfetto.dev."""
    from tunix_core.reporting import write_trace

    target = output or run_dir / "trace.perfetto-trace"
    slices = write_trace(run_dir, target)
    click.echo(f"{target}: {slices} slices. Open it at https://ui.perfetto.dev")


def _merge(config: PluginsConfig, chosen: PluginArguments, strict: bool) -> PluginsConfig:
    return replace(
        config,
        files=tuple(dict.fromkeys(config.files + chosen.files)),
        disabled=tuple(dict.fromkeys(config.disabled + chosen.disabled)),
        strict=config.strict or strict,
    )


def _load_for_run(plugins: PluginsConfig) -> Hub:
    hub = Hub.load(plugins.files, plugins.disabled, plugins.required, plugins.strict)
    hub.check_files()
    return hub


def _whole(hub: Hub, model: str) -> str:
    """A model's bare name as its whole id; a path stays as it is."""
    if "/" in model or Path(model.partition("@")[0]).exists():
        return model
    try:
        return hub.resolve("models", model).id
    except UnknownIdError as error:
        others = "a run's directory, a model's, or a .gguf file; `tunix model list` shows what can be fetched"
        raise UnknownIdError(f"{error}. No such path is there either: {others}") from error


def _rows(found: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Name and value of everything in a nested result, names joined with spaces."""
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, Mapping):
            rows += _rows(value, f"{above}{name} ")
        else:
            rows.append((f"{above}{name}", text(value)))
    return rows
