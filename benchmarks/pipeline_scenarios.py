"""What `make bench-pipeline` measures: each scenario gives its figures by name."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pipeline_faults import faults
from pipeline_learning import learning
from pipeline_peer import peer
from pipeline_rig import CONCURRENT, GROUP, TOKENS, TURNS, Run, earlier_run, head, suite, whole_run
from pipeline_sync import synchronous

from tunix_core.config import load_config

MEAN_S = 0.2
CALLS = TURNS + 1  # a reset and the steps
TAIL = 10.0 / 1.9  # the longest call, in means
SLOW = suite(mean_s=MEAN_S, shape="tail")
FIXED = ("--cap", "32", "--quiet", "0")  # the peer's: budgets of one size, so that it compiles once
SHAPES = ("constant", "lognormal", "bursts", "start")
Figures = dict[str, Any]


# ---- 1: latency ----
# Steps of 256 episodes each. A tenth of a run, which is left out at both ends, is to be longer than an episode.
FREE_STEPS, STEPS, QUICK_STEPS, GROUPS = 16, 8, 3, 32


def engine_bound(quick: bool) -> Figures:
    """Runs whose trainer costs nothing, at latency 0 and 200 ms, beside what the slower of two bounds allows."""
    pairs = _pairs("free", QUICK_STEPS if quick else FREE_STEPS, 1 if quick else 5, free=True)
    return {
        "busy_share": min(pair.ours["busy/engine"] for pair in pairs),
        "bound_share": statistics.median(pair.bound_share for pair in pairs),
        "episodes_per_s_engine_bound": [pair.rates for pair in pairs],
    }


def whole(quick: bool) -> Figures:
    """The same with the real trainer on the same cores."""
    pairs = _pairs("real", QUICK_STEPS if quick else STEPS, 1 if quick else 3)
    return {
        "idle_share": max(pair.ours["idle_share"] for pair in pairs),
        "bound_share_whole": statistics.median(pair.bound_share for pair in pairs),
        "episodes_per_s_whole": [pair.rates for pair in pairs],
        "bound_by": pairs[-1].bound_by,
    }


def shapes(quick: bool) -> Figures:
    """Engine-bound runs at other distributions of latency, as shares of the bound; after `engine-bound`."""
    head_, alone = head(QUICK_STEPS if quick else 4, groups=GROUPS), earlier_run("free-0")
    shaped = {s: suite(mean_s=MEAN_S, shape=s, start_s=1.0 if s == "start" else 0.0) for s in SHAPES}
    runs = {name: whole_run(f"free-{name}", head_ + text, free=True) for name, text in shaped.items()}
    return {"bound_share_by_shape": {name: _of_bound(run, alone) for name, run in runs.items()}}


class Pair(NamedTuple):
    """A run at latency 0 and one at 200 ms: episodes a second of both, and of the second its share of the bound, its
    shares of the wall clock, and what it was bound by."""

    rates: tuple[float, float]
    bound_share: float
    ours: Mapping[str, float]
    bound_by: str


def _pairs(name: str, steps: int, count: int, *, free: bool = False) -> list[Pair]:
    """Several pairs, one after another: the machine's speed drifts more from one to the next than what is asked."""
    return [_pair(name, steps, free=free) for _ in range(count)]


def _pair(name: str, steps: int, *, free: bool) -> Pair:
    start = head(steps, groups=GROUPS)
    alone = whole_run(f"{name}-0", start + suite(), free=free)
    ours = whole_run(f"{name}-200", start + SLOW, free=free)
    rates = alone.episodes_per_s, ours.episodes_per_s
    return Pair(rates, _of_bound(ours, alone), ours.shares, ours.summary["pipeline"]["bound_by"])


def _of_bound(run: Run, alone: Run) -> float:
    """Episodes a second as a share of what the slower of two bounds allows: the computation alone (measured at
    latency 0), and the environments' critical path by Little's law."""
    path = CONCURRENT / run.mean_s("env.reset", "env.step")
    return run.episodes_per_s / min(alone.episodes_per_s, path)


def sync(quick: bool) -> Figures:
    """Ours over each synchronous mode, and that ratio as a share of what the bounds predict; after `engine-bound`.

    A batch takes at least the engine's work; with a barrier a turn, the longest call of each turn comes on top, with
    a barrier a batch the longest episode is the other bound.
    """
    ours, alone = earlier_run("free-200"), earlier_run("free-0")
    config = load_config(None, text=f'run_dir = "unused"\n{head(1, groups=GROUPS)}{SLOW}')
    work_s = CONCURRENT / alone.episodes_per_s
    path_s = ours.mean_s("env.reset", "env.step")
    ours_s = max(work_s, path_s)
    # Of 256 calls, some are among the slow tenth for certain; of 256 episodes, one in 34 has three slow calls of four.
    bounds_s = {"turn": work_s + CALLS * MEAN_S * TAIL, "batch": max(work_s, (3 * TAIL + 1 / 1.9) * MEAN_S)}
    found = {}
    for name, bound_s in bounds_s.items():
        rate = synchronous(config, CONCURRENT, 1 if quick else 4, every_turn=name == "turn")
        ratio = ours.episodes_per_s / rate
        found[name] = {"episodes_per_s": rate, "ratio": ratio, "of_predicted": ratio / (bound_s / ours_s)}
    return {"vs_sync": found}


def rollout(quick: bool) -> Figures:
    """The peer's rollout at 200 ms with 32 concurrent episodes, and ours with 32 and 256."""
    steps = QUICK_STEPS if quick else 6
    ours = {
        n: whole_run(f"rollout-{n}", head(steps, groups=max(4, n // 8), episodes=n) + SLOW, free=True)
        for n in (32, CONCURRENT)
    }
    rates = {n: run.episodes_per_s for n, run in ours.items()}
    figures: Figures = {"ours_200ms": {f"{n} concurrent": rate for n, rate in rates.items()}}
    found = peer(["rollout", "--lats", "200", "--concs", "32", "--iters", "1" if quick else "2", *FIXED])
    if isinstance(found, str):
        return figures | dict.fromkeys(("vs_tunix_200ms", "vs_tunix_200ms_at_32", "tunix_200ms"), found)
    theirs = statistics.median(r["traj_per_s"] for r in found if r["kind"] != "cold")
    vs = {n: rate / theirs for n, rate in rates.items()}
    return figures | {"vs_tunix_200ms": vs[CONCURRENT], "vs_tunix_200ms_at_32": vs[32], "tunix_200ms": theirs}


def loop(quick: bool) -> Figures:
    """The peer's whole learner loop at latency 0, 32 episodes a step, and ours: steps a second, of pairs of runs."""
    pairs = list[tuple[float, float]]()
    for _ in range(1 if quick else 3):
        ours = whole_run("loop", head(12 if quick else 40, groups=4, episodes=32) + suite())
        found = peer(["train", "--steps", "4" if quick else "6", *FIXED])
        steps_per_s = 1.0 / statistics.median(row["step_s"] for row in ours.rows[2:])
        if isinstance(found, str):
            return {"ours_loop_steps_per_s": steps_per_s, "vs_tunix_loop": found}
        pairs.append((steps_per_s, found[0]["steps_per_s_after2"]))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    return {"vs_tunix_loop": ratio, "loop_steps_per_s": pairs}


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
    short = _asleep(episodes, TURNS, mean_s=2.0 if quick else 5.0, waves=2 if quick else 3)
    figures = {
        "step_cpu_us": short.cpu_us_per_step(short.nearly(episodes, "episode")),
        "rss_mb_10k": short.peak_mb,
        "loop_lag_ms_p99": max(row["loop/lag_ms_p99"] for row in short.rows[1:-1]),
        "concurrent": short.most_at_once("episode"),
    }
    long = _asleep(episodes, 16, mean_s=1.0 if quick else 3.0, waves=2)
    return figures | {"step_cpu_us_16_turns": long.cpu_us_per_step(long.nearly(episodes, "episode"))}


def _asleep(episodes: int, turns: int, mean_s: float, waves: int) -> Run:
    """So many episodes at a time, always, until the last have begun; each place is taken `waves` times."""
    groups = episodes // GROUP // 2
    config = head(
        2 * waves, groups=groups, episodes=episodes, staleness=2 * waves, engine="pipeline_env/fake", context=512
    )
    sleeping = suite(mean_s=mean_s, shape="lognormal", turns=turns, tokens=TOKENS * TURNS // turns)
    return whole_run("many", config + sleeping, free=True)


SCENARIOS: Mapping[str, Callable[[bool], Figures]] = {
    "many": many,  # first: its peak of memory is the process's
    "engine-bound": engine_bound,
    "whole": whole,
    "sync": sync,
    "shapes": shapes,
    "rollout": rollout,
    "loop": loop,
    "mix": mix,
    "faults": faults,
    "learning": learning,
}
