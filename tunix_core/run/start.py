"""From a config to a finished run: what can't work is told first, then the directory is opened and the loop begins."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tunix_core.config import RunConfig, dump_config
from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.reporting import RunDir
from tunix_core.run.build import prepare
from tunix_core.run.hosts import Hosts, follow, join, leading
from tunix_core.run.lock import check_lock, make_lock
from tunix_core.run.loop import run_on_loop
from tunix_core.run.outcome import RunResult
from tunix_core.run.training import Training

RUNS = "runs"  # where runs go whose directory nobody chose


def train(
    config: RunConfig,
    *,
    hub: Hub,
    resume: bool = False,
    overwrite: bool = False,
    config_name: str = "",
    hosts: Hosts | None = None,
) -> RunResult:
    """Trains as `config` says, in its run directory.

    Args:
        hosts: which of several processes this is; all but the first only repeat the first one's training.

    Raises:
        UsageError: something in the config does not fit what is installed.
        RunEnded: the run stopped itself; the message says why.
    """
    from tunix_core.trainer import advised

    if hosts:
        join(hosts)
    if resume and not config.run_dir:
        raise UsageError(f"--resume needs to know which run: give its directory with -o run_dir=PATH.{_newest()}")
    benches = [prepare(suite, hub) for suite in config.suites]
    config = replace(config, run_dir=config.run_dir or _default_dir(config_name))
    training = Training(config, hub, benches)  # what can't be built is told before anything is written
    lock = make_lock(config, benches, hub, training.sources)
    if hosts and hosts.process:
        with advised(training.needs):
            follow(training.learner, hosts)
        return RunResult(Path(config.run_dir), {})
    with ExitStack() as stack:
        if hosts:
            training.learner = stack.enter_context(leading(training.learner, hosts))
        run_dir = stack.enter_context(RunDir(Path(config.run_dir), resume=resume, overwrite=overwrite))
        if resume:
            check_lock(run_dir.read_json("lock.json"), lock)
        else:
            run_dir.write_text("config.toml", dump_config(config))
            run_dir.write_json("lock.json", lock)
        try:
            with advised(training.needs):
                return run_on_loop(training.run(run_dir, resume))
        except UsageError:
            if not resume:
                run_dir.forget()
            raise


def _newest() -> str:
    """Names the newest run where runs without a directory of their own go, if there is one."""
    found = [path.parent for path in Path(RUNS).glob("*/lock.json")]
    return f" The newest is {max(found, key=lambda path: path.stat().st_mtime)}." if found else ""


def _default_dir(name: str) -> str:
    return f"{RUNS}/{name or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"
