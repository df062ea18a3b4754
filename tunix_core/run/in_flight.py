"""What is going on now, in words: every open episode with its age and where it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tunix_core.profiling import SpanRecord

SHOWN = 20


class Flight(NamedTuple):
    """One episode that has begun and not ended.

    Attributes:
        where: the innermost span it is in, e.g. "env.step"; "" between two.
        there_s: for how long.
    """

    name: str
    age_s: float
    where: str
    there_s: float


def in_flight(spans: Iterable[SpanRecord]) -> list[Flight]:
    """The episodes among the open spans, the oldest first."""
    by_id = {span.id: span for span in spans}
    innermost: dict[int, SpanRecord] = {}
    for span in by_id.values():
        above: SpanRecord | None = span
        while above is not None and above.name != "episode":
            above = by_id.get(above.parent)
        if above is not None and (above.id not in innermost or span.start_ns > innermost[above.id].start_ns):
            innermost[above.id] = span
    flights = [_flight(by_id[episode], span) for episode, span in innermost.items()]
    return sorted(flights, key=lambda flight: -flight.age_s)


def waits(spans: Iterable[SpanRecord]) -> dict[str, tuple[int, float]]:
    """For each kind of open wait outside episodes: how many, and the longest in seconds."""
    found: dict[str, tuple[int, float]] = {}
    for span in spans:
        if span.name.startswith(("wait.", "trainer.", "weights.", "engine.round")):
            reason = span.tags.get("reason")
            name = f"{span.name} ({reason})" if reason else span.name
            many, longest = found.get(name, (0, 0.0))
            found[name] = many + 1, max(longest, span.duration_s)
    return found


def state_of_rooms(rooms: Mapping[str, Any], spans: Sequence[SpanRecord]) -> str:
    """Every room's numbers, who waits for what, and the episodes in flight; lines indented by two."""
    flights = in_flight(spans)
    where = Counter(flight.where or "between two calls" for flight in flights)
    lines = [f"{room}: {_plain(value)}" for room, value in rooms.items()]
    lines += [f"{name}: {many}, for up to {longest:.0f} s" for name, (many, longest) in sorted(waits(spans).items())]
    counts = ", ".join(f"{count} in {name}" for name, count in where.most_common())
    lines.append(f"episodes in flight: {len(flights)}" + (f" ({counts})" if counts else ""))
    lines += [
        f"  {each.name}: {each.age_s:.0f} s old, in {each.where or 'no call'} for {each.there_s:.0f} s"
        for each in flights[:SHOWN]
    ]
    if len(flights) > SHOWN:
        lines.append(f"  … and {len(flights) - SHOWN} younger ones")
    return "\n".join(f"  {line}" for line in lines)


def _flight(episode: SpanRecord, innermost: SpanRecord) -> Flight:
    tags = episode.tags
    name = f"{tags['suite']}#{tags['group']}.{tags['sample']}.{tags['attempt']}"
    turn = f" (turn {innermost.tags['turn']})" if "turn" in innermost.tags else ""
    where = "" if innermost.id == episode.id else innermost.name + turn
    return Flight(name, episode.duration_s, where, innermost.duration_s)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
