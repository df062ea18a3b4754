"""What `make bench-pipeline` measures: each scenario gives its figures by name."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from pipeline_faults import faults
from pipeline_learning import learning
from pipeline_peer import peer
from pipeline_rig import CONCURRENT, GROUP, TURNS, Run, head, suite, whole_run
from pipeline_sync import synchronous

from tunix_core.config import load_config

MEAN_S = 0.2
CALLS = TURNS + 1  # a reset and the steps
TAIL = 10.0 / 1.9  # the longest call, in means
SHAPES = ("constant", "lognormal", "bursts", "start")
Figures = dict[str, Any]


# ---- 1: latency ----
def latency(quick: bool) -> Figures:
    """Engine-bound and whole runs at 200 ms a call, beside analytic bounds, synchronous modes and the peer."""
    steps = 3 if quick else 16
    config = head(steps, groups=32)
    slow = suite(mean_s=MEAN_S, shape="tail")
    free = {name: whole_run(f"free-{name}", config + s, free=True) for name, s in (("0", suite()), ("200", slow))}
    real = {name: whole_run(f"real-{name}", config + s) for name, s in (("0", suite()), ("200", slow))}
    figures = {
        "busy_share": free["200"].shares["busy/engine"],
        "bound_share": _of_bound(free["200"], free["0"]),
        "idle_share": real["200"].shares["idle_share"],
        "bound_share_whole": _of_bound(real["200"], real["0"]),
        "episodes_per_s": {
            **{f"engine-bound, {k} ms": run.episodes_per_s for k, run in free.items()},
            **{f"whole, {k} ms": run.episodes_per_s for k, run in real.items()},
        },
        "bound_by": real["200"].summary["pipeline"]["bound_by"],
    }
    if not quick:
        shaped = {s: suite(mean_s=MEAN_S, shape=s, start_s=1.0 if s == "start" else 0.0) for s in SHAPES}
        others = {name: whole_run(f"free-{name}", config + s, free=True) for name, s in shaped.items()}
        figures["bound_share_by_shape"] = {name: _of_bound(run, free["0"]) for name, run in others.items()}
    return figures | _against_synchronous(config + slow, free["200"], free["0"], quick) | _against_peer(quick)


def _of_bound(run: Run, alone: Run) -> float:
    """Episodes a second as a share of what the slower of two bounds allows: the computation alone (measured at
    latency 0), and the environments' critical path by Little's law."""
    path = CONCURRENT / run.mean_s("env.reset", "env.step")
    return run.episodes_per_s / min(alone.episodes_per_s, path)


def _against_synchronous(text: str, ours: Run, alone: Run, quick: bool) -> Figures:
    """Ours over each synchronous mode, and that ratio as a share of what the bounds predict.

    A batch takes at least the engine's work; with a barrier a turn, the longest call of each turn comes on top, with
    a barrier a batch the longest episode is the other bound.
    """
    config = load_config(None, text=f'run_dir = "unused"\n{text}')
    batches = 1 if quick else 4
    work_s = CONCURRENT / alone.episodes_per_s
    path_s = ours.mean_s("env.reset", "env.step")
    ours_s = max(work_s, path_s)
    # Of 256 calls, some are among the slow tenth for certain; of 256 episodes, one in 34 has three slow calls of four.
    bounds_s = {"turn": work_s + CALLS * MEAN_S * TAIL, "batch": max(work_s, (3 * TAIL + 1 / 1.9) * MEAN_S)}
    found = {}
    for name, bound_s in bounds_s.items():
        rate = synchronous(config, CONCURRENT, batches, every_turn=name == "turn")
        ratio = ours.episodes_per_s / rate
        found[name] = {"episodes_per_s": rate, "ratio": ratio, "of_predicted": ratio / (bound_s / ours_s)}
    return {"vs_sync": found}


def _against_peer(quick: bool) -> Figures:
    """The peer's rollout at 200 ms and its whole learner loop at latency 0, ours beside each."""
    shape = suite(mean_s=MEAN_S, shape="tail")
    steps = 3 if quick else 10
    ours = {
        n: whole_run(f"rollout-{n}", head(steps, groups=max(4, n // 8), episodes=n) + shape, free=True)
        for n in (32, CONCURRENT)
    }
    loop = whole_run("loop", head(12 if quick else 40, groups=4, episodes=32) + suite())
    steps_per_s = 1.0 / statistics.median(row["step_s"] for row in loop.rows[2:])
    figures: Figures = {
        "ours_200ms": {f"{n} concurrent": run.episodes_per_s for n, run in ours.items()},
        "ours_loop_steps_per_s": steps_per_s,
    }
    fixed = ("--cap", "32", "--quiet", "0")
    rollout = peer(["rollout", "--lats", "200", "--concs", "32", "--iters", "1" if quick else "2", *fixed])
    if isinstance(rollout, str):
        figures |= {"vs_tunix_200ms": rollout}
    else:
        theirs = statistics.median(r["traj_per_s"] for r in rollout if r["kind"] != "cold")
        rates = {n: run.episodes_per_s / theirs for n, run in ours.items()}
        figures |= {"vs_tunix_200ms": rates[CONCURRENT], "vs_tunix_200ms_at_32": rates[32], "tunix_200ms": theirs}
    learner = peer(["train", "--steps", "4" if quick else "6", *fixed])
    if isinstance(learner, str):
        return figures | {"vs_tunix_loop": learner}
    theirs = learner[0]["steps_per_s_after2"]
    return figures | {"vs_tunix_loop": steps_per_s / theirs, "tunix_loop_steps_per_s": theirs}


# ---- 2: the mix ----
def mix(quick: bool) -> Figures:
    """Three suites whose calls take 1 ms, 100 ms and 10 s, at a twentieth: the mix, and what the run waits for."""
    found, errors, windows, idle = {}, [], [], []
    for weights in ((1, 1, 1), (3, 2, 1)):
        parts = [
            suite(
                more=f'name = "{name}"\nweight = {weight}\ngroup_size = 4\n',
                tokens=8,
                mean_s=seconds / 20,
                turns=1,
            )
            for name, weight, seconds in zip(("quick", "middle", "slow"), weights, (0.001, 0.1, 10.0), strict=True)
        ]
        steps = 20 if quick else 50
        run = whole_run(f"mix-{weights[0]}", head(steps, groups=24) + "".join(parts))
        whole, worst = _mix_errors(run, dict(zip(("quick", "middle", "slow"), weights, strict=True)))
        errors.append(whole)
        windows.append(worst)
        idle.append(run.shares["idle_share"])
        found[":".join(map(str, weights))] = {
            "bound_by": run.summary["pipeline"]["bound_by"],
            "advice": run.summary["pipeline"]["advice"],
            "barriers": {name: share for name, share in run.shares.items() if name.startswith("barrier/")},
        }
    return {
        "mix_error_50": max(errors),
        "mix_error_window_10": max(windows),
        "mix_idle_share": max(idle),
        "mix_bound_by": found,
    }


def _mix_errors(run: Run, weights: Mapping[str, int]) -> tuple[float, float]:
    """Mix error over the whole run, and the largest over any ten steps."""
    consumed = [{name: 0.0 for name in weights}]
    consumed += [{name: row[f"suite/{name}/consumed"] for name in weights} for row in run.rows]

    def error(since: int, until: int) -> float:
        taken = {name: consumed[until][name] - consumed[since][name] for name in weights}
        total, asked = max(1.0, sum(taken.values())), sum(weights.values())
        return max(abs(taken[name] / total - weights[name] / asked) for name in weights)

    steps = len(run.rows)
    return error(0, steps), max(error(start, start + 10) for start in range(steps - 9))


# ---- 4: ten thousand ----
def many(quick: bool) -> Figures:
    """Ten thousand concurrent episodes of an environment that sleeps, with the fake engine."""
    episodes = 2000 if quick else 10_000
    config = head(4 if quick else 6, groups=episodes // GROUP // 2, episodes=episodes, engine="pipeline_env/fake")
    run = whole_run("many", config + suite(mean_s=2.0 if quick else 5.0, shape="lognormal"), free=True)
    return {
        "step_cpu_us": run.cpu_us_per_step,
        "rss_mb_10k": run.peak_mb,
        "loop_lag_ms_p99": max(row["loop/lag_ms_p99"] for row in run.rows[1:-1]),
        "concurrent": run.most_at_once("episode"),
    }


SCENARIOS: Mapping[str, Callable[[bool], Figures]] = {
    "many": many,  # first: its peak of memory is the process's
    "latency": latency,
    "mix": mix,
    "faults": faults,
    "learning": learning,
}
