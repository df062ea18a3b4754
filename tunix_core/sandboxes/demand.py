"""How many sandboxes to keep warm: as many as were asked for at once of late."""

from __future__ import annotations

from collections import deque

BURST_S = 2.0  # requests within this time count as at once: a group's episodes start together
WINDOW_S = 120.0  # what is not asked for any longer is not kept warm


class Demand:
    """The requests for one kind of sandbox, over time.

    Args:
        most: how many to keep warm at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[float] = deque()

    def note(self, now_s: float) -> None:
        """One was asked for."""
        self._times.append(now_s)

    def target(self, now_s: float) -> int:
        """The largest number asked for within BURST_S, of the last WINDOW_S; at most `most`."""
        while self._times and self._times[0] < now_s - WINDOW_S:
            self._times.popleft()
        times, first, largest = self._times, 0, 0
        for index, time_s in enumerate(times):
            while times[first] < time_s - BURST_S:
                first += 1
            largest = max(largest, index - first + 1)
        return min(self._most, largest)
