"""A suite's score: its parts, each checked against its own range, weighted and added.

| what a part does | its value | the failure |
|---|---|---|
| gives a number within its range | the number | |
| gives None | None | |
| gives a dict of numbers, each within the range | their sum; each is a part `id.key` too | |
| raises | None | reward_raised, or the kind of the EpisodeError it raised (bad_gold, grader_lost, ...) |
| gives NaN; leaves its range; gives something else | None | reward_nan; reward_range; reward_type |
| takes longer than `score_s` | None | reward_timeout |
| uses up its worker's CPU limit, twice | the worst end of its range | flag "grader_timeout" |

One part None makes the score None.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from tunix_core.config import RewardConfig
from tunix_core.contracts import Episode, Scorer
from tunix_core.errors import EpisodeError, RewardError, UsageError, boundary, did_you_mean, failure_of
from tunix_core.rewards.definition import GroupReward, Range, Reward
from tunix_core.rewards.threads import call_in_thread, call_on_loop
from tunix_core.rewards.workers import GraderTimeout, Target, WorkerPool, shared_workers
from tunix_core.specs import Timeouts
from tunix_core.types import Failure, Score

ENV = "env"
WALL_PER_CPU = 4.0  # a cpu_bound call's wall-clock bound, in its CPU limits, where that is more than score_s


def make_scorer(
    parts: Sequence[RewardConfig],
    load: Callable[[str], Any],
    *,
    range_of_env: Range = (0.0, 1.0),
    timeouts: Timeouts,
    workers: WorkerPool | None = None,
) -> Scorer:
    """The rewards of one suite as one scorer.

    The part "env" is the sum of the episode's step rewards; words in `episode.info["flags"]` become
    flags of the score.

    Args:
        parts: what counts, each with weight and options.
        load: gives the `@reward` or `@group_reward` object of an id.
        range_of_env: the range of the part "env".
        timeouts: `score_s` bounds each reward's call, in seconds.
        workers: where `cpu_bound` rewards run; the caller closes it. Default: the shared pool.

    Raises:
        UsageError: a part can't be used as configured.
    """
    if not parts:
        raise UsageError('rewards = [] leaves nothing to score; name at least one, such as "env"')
    ids = [part.id for part in parts]
    if twice := sorted({id for id in ids if ids.count(id) > 1}):
        raise UsageError(f"rewards lists {', '.join(twice)} more than once; a part's value is kept under its id")
    made = [_make_part(part, load, range_of_env, timeouts, workers) for part in parts]
    return WeightedScorer(tuple(p for p in made if not p.of_group), tuple(p for p in made if p.of_group))


def _make_part(
    config: RewardConfig,
    load: Callable[[str], Any],
    range_of_env: Range,
    timeouts: Timeouts,
    workers: WorkerPool | None,
) -> _Part:
    if not math.isfinite(config.weight):
        raise UsageError(f"reward {config.id!r}: weight={config.weight!r}; expected a finite number")
    if config.id == ENV:
        if config.options:
            raise UsageError(f'the part "env" takes no options; given {sorted(config.options)}')
        return _Part(config.id, config.weight, range_of_env, _env)
    found = load(config.id)
    if not isinstance(found, Reward | GroupReward):
        raise UsageError(
            f"reward {config.id!r} is {type(found).__name__} {found!r}; expected a function decorated with "
            "@reward or @group_reward of tunix_core.rewards"
        )
    _check_options(config, found)
    call = _caller(found, config.options, timeouts.score_s, workers)
    return _Part(config.id, config.weight, found.range, call, isinstance(found, GroupReward))


def _check_options(config: RewardConfig, found: Reward | GroupReward) -> None:
    signature = inspect.signature(found.fn)
    try:
        signature.bind(None, **config.options)
    except TypeError as error:
        takes = [name for name in list(signature.parameters)[1:]]
        near = "".join(did_you_mean(key, takes) for key in config.options if key not in takes)
        raise UsageError(f"reward {config.id!r}: {error}; its options are {takes}.{near}") from error


def _caller(
    found: Reward | GroupReward, options: Mapping[str, Any], score_s: float, workers: WorkerPool | None
) -> Callable[[Any], Any]:
    fn = partial(found.fn, **options)
    if isinstance(found, Reward) and found.cpu_bound:
        return _in_worker(found, options, score_s, workers)
    if inspect.iscoroutinefunction(found.fn):
        return lambda given: call_on_loop(fn(given), score_s)
    return lambda given: call_in_thread(lambda: fn(given), score_s)


def _in_worker(
    found: Reward, options: Mapping[str, Any], score_s: float, workers: WorkerPool | None
) -> Callable[[Any], Any]:
    target = _target(found)
    cpu_s = min(found.cpu_s, score_s)
    wall_s = max(score_s, WALL_PER_CPU * cpu_s)

    def call(episode: Episode) -> Any:
        pool = workers or shared_workers()
        return pool.call_async(target, replace(episode, sandbox=None), cpu_s=cpu_s, wall_s=wall_s, **options)

    return call


def _target(found: Reward) -> Target:
    module, name = found.__module__, found.fn.__qualname__
    file = getattr(sys.modules.get(module), "__file__", None)
    if "<locals>" in name or "<lambda>" in name:
        raise UsageError(
            f"the cpu_bound reward {name!r} of {module!r} runs in another process, which can't find it: "
            "define it at the top level of its module"
        )
    return ("tunix_worker_main" if module == "__main__" else module), name, file


async def _env(episode: Episode) -> float:
    return float(sum(episode.step_rewards))


@dataclass(frozen=True, slots=True)
class _Measured:
    """One part's value of one episode; `keys` has a dict's entries."""

    value: float | None
    keys: Mapping[str, float | None] = field(default_factory=dict)
    failure: Failure | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    weight: float
    range: Range
    call: Callable[[Any], Any]
    of_group: bool = False

    async def measure(self, episode: Episode) -> _Measured:
        try:
            with boundary(f"reward.{self.name}", RewardError):
                return _read(await self.call(episode), self.range)
        except GraderTimeout:
            return _Measured(self.worst, flags=("grader_timeout",))
        except EpisodeError as error:
            return _Measured(None, failure=failure_of(error))

    async def measure_group(self, episodes: Sequence[Episode]) -> list[_Measured]:
        try:
            with boundary(f"reward.{self.name}", RewardError):
                return _read_group(await self.call(tuple(episodes)), self.range, len(episodes))
        except EpisodeError as error:
            return [_Measured(None, failure=failure_of(error))] * len(episodes)

    @property
    def worst(self) -> float:
        """The end of the range that lowers the score most, as a wrong answer would."""
        return self.range[0] if self.weight >= 0 else self.range[1]


def _read_group(given: Any, range: Range, expected: int) -> list[_Measured]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | np.ndarray) or len(given) != expected:
        raise RewardError(f"gave {given!r:.200}; expected {expected} values, one per episode", kind="reward_type")
    return [_read(value, range) for value in given]


def _read(given: Any, range: Range) -> _Measured:
    if not isinstance(given, Mapping):
        return _Measured(_check(given, range))
    if not given or not all(isinstance(key, str) for key in given):
        raise RewardError(f"gave {given!r:.200}; expected a dict from names to numbers", kind="reward_type")
    keys = {key: _check(value, range, f" under {key!r}") for key, value in given.items()}
    values = [value for value in keys.values() if value is not None]
    return _Measured(sum(values) if len(values) == len(keys) else None, keys)


def _check(given: Any, range: Range, where: str = "") -> float | None:
    """The number as a float; a rounding error past an end of the range is taken back."""
    if given is None:
        return None
    if not isinstance(given, Real | np.bool_):
        raise RewardError(
            f"gave {type(given).__name__} {given!r:.200}{where}; expected a number or None", kind="reward_type"
        )
    value = float(given)
    if math.isnan(value):
        raise RewardError(f"gave NaN{where}; expected a number in {list(range)} or None", kind="reward_nan")
    slack = 1e-9 * max(1.0, *(abs(end) for end in range if math.isfinite(end)), 0.0)
    if math.isinf(value) or not range[0] - slack <= value <= range[1] + slack:
        raise RewardError(
            f"gave {value!r}{where}, outside its range {list(range)}; widen the range where it is declared, "
            "or give None for what can't be scored",
            kind="reward_range",
        )
    return min(max(value, range[0]), range[1])


class WeightedScorer:
    """The weighted sum of a suite's parts. Satisfies `contracts.Scorer`; made by `make_scorer`.

    `score` knows the parts of one episode; `score_group` adds those of `@group_reward`, which see the
    episodes that have a score so far.
    """

    def __init__(self, parts: tuple[_Part, ...], group_parts: tuple[_Part, ...]) -> None:
        self._parts, self._group_parts = parts, group_parts

    async def score(self, episode: Episode) -> Score:
        """The episode's score. Raises nothing but CancelledError."""
        if len(self._parts) == 1:  # which needs no task of its own
            measured = [await self._parts[0].measure(episode)]
        else:
            measured = await asyncio.gather(*(part.measure(episode) for part in self._parts))
        start = Score(0.0, flags=_flags_of(episode))
        return _add(start, self._parts, measured)

    async def score_group(self, episodes: Sequence[Episode], scores: Sequence[Score]) -> Sequence[Score]:
        """The scores with the group's parts added, in the same order. Raises ValueError when the two
        differ in length, else nothing but CancelledError."""
        pairs = list(zip(episodes, scores, strict=True))
        scored = [i for i, (_, score) in enumerate(pairs) if score.value is not None]
        if not self._group_parts or not scored:
            return tuple(scores)
        members = [episodes[i] for i in scored]
        columns = await asyncio.gather(*(part.measure_group(members) for part in self._group_parts))
        result = list(scores)
        for i, measured in zip(scored, zip(*columns, strict=True), strict=True):
            result[i] = _add(scores[i], self._group_parts, measured)
        return tuple(result)

    async def aclose(self) -> None:
        """Nothing is held: a pool of workers belongs to who made it."""


def _flags_of(episode: Episode) -> tuple[str, ...]:
    given = episode.info.get("flags", ())
    return tuple(str(flag) for flag in given) if isinstance(given, list | tuple) else ()


def _add(score: Score, parts: Sequence[_Part], measured: Sequence[_Measured]) -> Score:
    values = {part.name: m.value for part, m in zip(parts, measured, strict=True)}
    keys = {f"{part.name}.{key}": v for part, m in zip(parts, measured, strict=True) for key, v in m.keys.items()}
    failures = [m.failure for m in measured if m.failure]
    flags = dict.fromkeys((*score.flags, *(flag for m in measured for flag in m.flags)))
    value = score.value
    for part, m in zip(parts, measured, strict=True):
        value = None if value is None or m.value is None else value + part.weight * m.value
    return Score(
        value=value,
        parts={**score.parts, **values, **keys},
        failure=score.failure or (failures[0] if failures else None),
        flags=tuple(flags),
    )
