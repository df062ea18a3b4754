"""What a reward is: a function, the range it promises, and where it may run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tunix_core.contracts import Episode

Range = tuple[float, float]


@dataclass(frozen=True)
class Reward:
    """A decorated reward. Calling it calls the function, so that it can be tested as written.

    Attributes:
        fn: `(episode, **options) -> float | None | dict[str, float]`, sync or async.
        range: the lowest and the highest value; anything outside is a failure of the reward.
        cpu_bound: run it in a killable worker process.
        cpu_s: seconds of the worker's own CPU clock that a `cpu_bound` call may take.
    """

    fn: Callable[..., Any]
    range: Range
    cpu_bound: bool = False
    cpu_s: float = 10.0

    def __call__(self, episode: Episode, **options: Any) -> Any:
        return self.fn(episode, **options)


@dataclass(frozen=True)
class GroupReward:
    """A decorated group reward: `(episodes, **options) -> Sequence[float | None]`, one per episode."""

    fn: Callable[..., Any]
    range: Range

    def __call__(self, episodes: Sequence[Episode], **options: Any) -> Any:
        return self.fn(episodes, **options)


_Decorated = TypeVar("_Decorated", Reward, GroupReward)


def reward(
    *, range: Range = (0.0, 1.0), cpu_bound: bool = False, cpu_s: float = 10.0
) -> Callable[[Callable[..., Any]], Reward]:
    """Makes a function a reward: `@reward(range=(0, 1)) def f(episode, **options)`.

    The function gives a number; None when it can't tell (the sample then leaves its group); or a
    dict of numbers, each within the range, whose sum is the value.

    A plain `def` runs in a thread, an `async def` on the event loop (it must not block), and a
    `cpu_bound` one in a worker process, where it is found again by its module and name: it must
    stand at the top level of a module, and its options and the episode's info must pickle.

    Args:
        range: lowest and highest value, lowest < highest; may be infinite.
        cpu_bound: run it in a worker process that can be killed.
        cpu_s: a `cpu_bound` call's limit, in seconds of CPU.

    Raises:
        TypeError, ValueError: the range or the function can't be used.
    """
    checked = _check_range(range)

    def decorate(fn: Callable[..., Any]) -> Reward:
        if cpu_bound and inspect.iscoroutinefunction(fn):
            raise TypeError(f"reward {fn.__qualname__!r} is async and cpu_bound; a worker runs a plain def")
        return _named(Reward(fn, checked, cpu_bound, cpu_s), fn)

    return decorate


def group_reward(*, range: Range = (0.0, 1.0)) -> Callable[[Callable[..., Any]], GroupReward]:
    """Makes a function a group reward: it takes the episodes of one group that have a score so far,
    and gives one number or None for each, in their order.

    Args:
        range: lowest and highest value, lowest < highest; may be infinite.
    """
    checked = _check_range(range)
    return lambda fn: _named(GroupReward(fn, checked), fn)


def _check_range(given: Range) -> Range:
    if len(given) != 2 or any(math.isnan(end) for end in given) or not given[0] < given[1]:
        raise ValueError(f"range={given!r}: expected (lowest, highest) with lowest < highest")
    return float(given[0]), float(given[1])


def _named(decorated: _Decorated, fn: Callable[..., Any]) -> _Decorated:
    for name in ("__module__", "__qualname__", "__name__", "__doc__"):
        object.__setattr__(decorated, name, getattr(fn, name))
    return decorated
