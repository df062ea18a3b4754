"""Task sources of the core's own, and how long a source is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tunix_core.contracts import TaskSource
from tunix_core.errors import UsageError
from tunix_core.types import Task


class ListSource:
    """A finite source over tasks at hand. Raises UsageError when two have one id."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        twice = [name for name, count in Counter(task.id for task in tasks).items() if count > 1]
        if twice:
            raise UsageError(f"task ids must be unique; {twice[0]!r} comes more than once ({len(twice)} such ids)")
        self._tasks = tuple(tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, index: int) -> Task:
        return self._tasks[index]


class GeneratedSource:
    """An endless source: `fn(i)`, a pure function, is task i."""

    def __init__(self, fn: Callable[[int], Task]) -> None:
        self._fn = fn

    def __len__(self) -> int:
        raise TypeError("this source is endless; see length_of")

    def get(self, index: int) -> Task:
        return self._fn(index)


def length_of(source: TaskSource) -> int | None:
    """How many tasks a source has; None when it is endless (its `len` raises TypeError, or it has none)."""
    try:
        return len(source)
    except TypeError:
        return None
