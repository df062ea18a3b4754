"""Shares of the wall clock from spans: how busy engine and trainer are, and which barrier holds whom.

busy/engine, busy/trainer        inside a round with a resident request; computing
idle_share                       neither of them
barrier/staleness                the trainer waits for an older group, though younger ones are there
barrier/mix                      the trainer waits for a suite, though others' groups are there
barrier/trainer_starved          the trainer waits, and no group is there
barrier/engine_starved           no request is in the engine
barrier/admission                the staleness bound lets no group start, and neither engine nor trainer is at work
barrier/hand_over                weights are handed over, draining included
barrier/environment              environments or rewards are at work, and neither engine nor trainer
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter_ns

from tunix_core.profiling import Interval, SpanRecord, covered_ns, merged

KINDS: Mapping[str, str] = {
    "engine.round": "engine",
    "trainer.accumulate": "trainer",
    "trainer.apply": "trainer",
    "env.open": "environment",
    "env.reset": "environment",
    "env.step": "environment",
    "env.close": "environment",
    "reward": "environment",
    "reward.group": "environment",
    "wait.staleness": "staleness",
    "wait.mix": "mix",
    "wait.groups": "trainer_starved",
    "wait.admission": "admission",
    "weights.publish": "hand_over",
}
MERGE_AT = 8192  # intervals of a kind, so that a long step's memory is bounded
Shares = dict[str, float]


def shares(intervals: Mapping[str, Iterable[Interval]], since_ns: int, until_ns: int) -> Shares:
    """Every share of [since_ns, until_ns], from intervals by kind (a value of KINDS)."""

    def covered(*kinds: str) -> float:
        return covered_ns((each for kind in kinds for each in intervals.get(kind, ())), since_ns, until_ns) / wall

    wall = max(1, until_ns - since_ns)
    engine, computing = covered("engine"), covered("engine", "trainer")
    return {
        "busy/engine": engine,
        "busy/trainer": covered("trainer"),
        "idle_share": 1.0 - computing,
        "barrier/staleness": covered("staleness"),
        "barrier/mix": covered("mix"),
        "barrier/trainer_starved": covered("trainer_starved"),
        "barrier/engine_starved": 1.0 - engine,
        "barrier/admission": covered("engine", "trainer", "admission") - computing,
        "barrier/hand_over": covered("hand_over"),
        "barrier/environment": covered("engine", "trainer", "environment") - computing,
    }


def by_kind(spans: Iterable[SpanRecord]) -> dict[str, list[Interval]]:
    """The intervals of the spans that a share is made of."""
    found: defaultdict[str, list[Interval]] = defaultdict(list)
    for span in spans:
        kind = KINDS.get(span.name)
        if kind is None or (kind == "admission" and span.tags.get("reason") != "max_staleness"):
            continue
        found[kind].append((span.start_ns, span.end_ns))
    return dict(found)


class Barriers:
    """Gathers spans as they finish, and gives the shares since the last call.

    Attributes:
        episodes: how many have ended.
    """

    def __init__(self) -> None:
        self._ended: defaultdict[str, list[Interval]] = defaultdict(list)
        self._queued = [0, 0.0, 0.0]  # groups that left the queue, the sum of their ages, the oldest
        self._since_ns, self._lock = perf_counter_ns(), threading.Lock()
        self.episodes = 0

    def watch(self, spans: Sequence[SpanRecord]) -> None:
        """Takes finished spans, each once. Safe from any thread."""
        names = [span.name for span in spans]
        ages = [span.duration_s for span in spans if span.name == "queue"] if "queue" in names else []
        with self._lock:
            self.episodes += names.count("episode")
            many, total, oldest = self._queued
            self._queued = [many + len(ages), total + sum(ages), max([oldest, *ages])]
            for kind, intervals in by_kind(spans).items():
                self._ended[kind] += intervals
                if len(self._ended[kind]) > MERGE_AT:
                    self._ended[kind] = merged(self._ended[kind])

    def restart(self) -> None:
        """Begins a window now."""
        self._since_ns = perf_counter_ns()

    def row(self, until_ns: int, open_spans: Iterable[SpanRecord]) -> tuple[float, Shares]:
        """The seconds from the last call to `until_ns`, and their shares; spans still open count up to there.

        `open_spans` are to be taken at or after `until_ns`, and then everything that has finished is to be given to
        `watch`: in that order none can slip through in between, and one that is in both counts once.
        """
        # What still goes on ends where all of it ends: together that is one piece.
        going = {kind: [(min(each)[0], max(end for _, end in each))] for kind, each in by_kind(open_spans).items()}
        with self._lock:
            every = {kind: [*self._ended.get(kind, ()), *going.get(kind, ())] for kind in {*self._ended, *going}}
            window_s, found = (until_ns - self._since_ns) / 1e9, shares(every, self._since_ns, until_ns)
            many, total, oldest = self._queued
            found |= {"queue/age_s_mean": total / max(1, many), "queue/age_s_max": oldest}
            self._queued = [0, 0.0, 0.0]
            for kind, intervals in self._ended.items():
                self._ended[kind] = [each for each in intervals if each[1] > until_ns]
        self._since_ns = until_ns
        return window_s, found
