"""What this package registers."""

from __future__ import annotations

from typing import Any

from tunix_core import EnvSpec, Option, Timeouts, hookimpl

MAX_TURNS = 50
# A reset may pull an image, and the last step runs the hidden tests.
TIMEOUTS = Timeouts(reset_s=1800.0, step_s=2400.0, close_s=60.0, episode_s=7200.0)
TOOLS = ("tools/bash", "tools/edit", "tools/search")
SELECTION = {
    "only": Option((), "ids of rows to take, or a file of them; default: all"),
    "exclude": Option((), "ids of rows to leave out, or a file of them, such as `tunix check --out` writes"),
}
EPISODE = {
    "tools": Option(TOOLS, "ids of the tools the agent has besides `submit`"),
    "reward": Option("resolved", '"resolved": 1 or 0; "share": repaired share times maintained share of the tests'),
    "command_timeout_s": Option(120.0, "seconds a tool call may take"),
    "eval_timeout_s": Option(1800.0, "seconds the hidden tests may take"),
    "cpus": Option(1.0, "of each container"),
    "memory_mb": Option(4096, "of each container"),
    "disk_mb": Option(4096, "of each container's work tree"),
    "pids": Option(512, "processes and threads of each container"),
}


def _spec(name: str, summary: str, source: str, split: str, eval_share: float) -> EnvSpec:
    where = {
        "source": Option(source, "a .jsonl, .json or .parquet file of rows, or the id of a data set"),
        "source_split": Option(split, "which split of a data set"),
        "eval_share": Option(eval_share, "the share of the rows kept for eval; the others are for training"),
    }
    return EnvSpec(
        id=f"swebench/{name}",
        target="tunix_env_swebench.env:SweBenchEnv",
        tasks="tunix_env_swebench.tasks:make_tasks",
        summary=summary,
        options={**where, **SELECTION, **EPISODE},
        chance_score=0.0,
        max_turns=MAX_TURNS,
        requires=("isolated-sandbox",),
        timeouts=TIMEOUTS,
        solutions="tunix_env_swebench.tasks:solutions",
    )


@hookimpl
def tunix_register_envs(register: Any) -> None:
    register(_spec("mini", "Five small repositories with a bug each; build their images first", "mini", "", 0.4))
    register(_spec("lite", "SWE-bench Lite: 300 issues of real repositories", "SWE-bench/SWE-bench_Lite", "test", 1.0))
    register(
        _spec(
            "verified", "SWE-bench Verified: 500 issues, checked by people", "SWE-bench/SWE-bench_Verified", "test", 1.0
        )
    )
    register(_spec("rows", "Issues from a file or data set of your own; give the option source", "", "train", 0.1))


@hookimpl
def tunix_register_commands(cli: Any) -> None:
    from tunix_env_swebench.commands import swebench_group

    cli.add_command(swebench_group)
