"""Where a run's time went: shares of its wall clock, what bound it, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

WORTH_SAYING = 0.05  # of the wall clock
PREFIXES = ("busy/", "barrier/")
BOUND = {
    "staleness": "the staleness bound",
    "admission": "the staleness bound, at admission",
    "mix": "the mix",
    "hand_over": "the hand-over of weights",
    "environment": "the environments",
}
ADVICE = {
    "staleness": "the trainer waits for older groups {share:.0%} of the time: raise scheduler.max_staleness or "
    "trainer.groups_per_step, or bound an episode with timeouts.episode_s",
    "admission": "engine and trainer stand still {share:.0%} of the time while the staleness bound lets nothing start: "
    "raise scheduler.max_staleness or trainer.groups_per_step",
    "mix": "the trainer waits {share:.0%} of the time for a suite's share of the mix while other suites' groups are "
    "ready{slowest}: lower that suite's weight, or make its episodes shorter",
    "hand_over": "handing weights over takes {share:.0%} of the time: "
    'scheduler.mode = "in_flight" waits for no episode',
    "environment": "environments alone are at work {share:.0%} of the time: raise scheduler.max_episodes, so that "
    "other episodes fill the engine meanwhile",
}


def pipeline_summary(rows: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """The shares over all rows of a run's metrics, each weighted by its window.

    Returns:
        {"shares": {name: share}, "bound_by": in words, "advice": [one line each], "goodput": trained tokens by
        sampled ones}; {} where no row has shares.
    """
    total_s, last, sums = 0.0, dict[str, float](), dict[str, float]()
    for row in rows:
        if not (window_s := row.get("window_s", 0.0)):
            continue
        total_s, last = total_s + window_s, dict(row)
        for name, value in row.items():
            if name.startswith(PREFIXES) or name == "idle_share":
                sums[name] = sums.get(name, 0.0) + window_s * value
    if not total_s:
        return {}
    shares = {name: value / total_s for name, value in sums.items()}
    return {
        "shares": shares,
        "bound_by": _bound_by(shares),
        "advice": _advice(shares, last),
        "goodput": last.get("goodput"),
    }


def pipeline_table(summary: Mapping[str, Any]) -> Table:
    """The shares as a table, with what bound the run under it."""
    lines = [f"bound by {summary['bound_by']}", *summary["advice"]]
    table = Table(title="where the time went", caption="\n".join(lines), min_width=60)
    table.add_column("share of the wall clock")
    table.add_column("", justify="right")
    for name, share in summary["shares"].items():
        table.add_row(name, f"{share:.1%}")
    return table


def _bound_by(shares: Mapping[str, float]) -> str:
    """The barrier that held the most, unless engine or trainer were at work all but always."""
    held = {name: shares.get(f"barrier/{name}", 0.0) for name in BOUND}
    name = max(held, key=lambda each: held[each])
    engine, trainer = shares.get("busy/engine", 0.0), shares.get("busy/trainer", 0.0)
    if shares.get("idle_share", 0.0) < WORTH_SAYING or held[name] < WORTH_SAYING:
        return "the engine" if engine >= trainer else "the trainer"
    return BOUND[name]


def _advice(shares: Mapping[str, float], last: Mapping[str, float]) -> Sequence[str]:
    slowest = _slowest_suite(last)
    return [
        text.format(share=shares[f"barrier/{name}"], slowest=slowest)
        for name, text in ADVICE.items()
        if shares.get(f"barrier/{name}", 0.0) > WORTH_SAYING
    ]


def _slowest_suite(row: Mapping[str, float]) -> str:
    latency = {name: value for name, value in row.items() if name.endswith("/latency_s")}
    if not latency:
        return ""
    name = max(latency, key=lambda each: latency[each])
    return (
        f" (the slowest is {name.removeprefix('suite/').removesuffix('/latency_s')}, {latency[name]:.1f} s an episode)"
    )
