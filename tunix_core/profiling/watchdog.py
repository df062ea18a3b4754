"""Watches an event loop: how late it is, and what made it so.

The loop beats; each beat's delay is its lag. A thread looks at the beats, and when one is overdue it
takes the stack of the loop's thread: whatever runs there then holds everybody up.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import FrameType

from tunix_core.profiling.holding import add_hold
from tunix_core.profiling.recorder import note

log = logging.getLogger(__name__)
LIMIT_S = 0.25
BEAT_S = 0.02
HOLD_S = 0.1  # a lag that is more than a busy loop's
KEPT = 4096  # lags between two calls of `statistics`
SHOWN = 8  # innermost frames of a culprit
CULPRITS = 20  # told apart; a machine that is overloaded stops anywhere
OTHERS = "others"
ELSEWHERE = "nothing of its own: another thread keeps the interpreter to itself, or the machine is overloaded"
LOOP_ITSELF = frozenset({asyncio.runners.__file__, asyncio.base_events.__file__, selectors.__file__})


class Watchdog:
    """Beats on the running event loop, and watches from a thread, from `start` to `stop`.

    Args:
        limit_s: how long a beat may be overdue before the stack is taken.
        clock: seconds.
        waited_for: whether anybody waits for the loop now: else a hold, as at a start, is nobody's loss.
        frame: the stack of the loop's thread now.
        held: called from the thread, again and again, while a beat is overdue.

    Attributes:
        culprits: how often each stack, by its innermost frames, was found to hold the loop; after the first 20,
            "others".
    """

    def __init__(
        self,
        *,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        waited_for: Callable[[], bool] = lambda: True,
        frame: Callable[[], FrameType | None] | None = None,
        held: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock, self._limit_s, self._waited_for, self._held = clock, limit_s, waited_for, held
        own = threading.get_ident()
        self._frame = frame or (lambda: sys._current_frames().get(own))
        self.culprits: dict[str, int] = {}
        self._lags: deque[float] = deque(maxlen=KEPT)
        self._due, self._seen = self._clock() + BEAT_S, 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunix-watchdog", daemon=True)

    def start(self) -> None:
        self._next = self._loop.call_later(BEAT_S, self._keep_beating)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._next.cancel()
        self._thread.join()

    def beat(self) -> None:
        """The loop is alive: notes how late it was, and when it is due again."""
        now = self._clock()
        lag = max(0.0, now - self._due)
        # Whoever became ready later in a long hold waited for its rest: so did each beat that was left out.
        self._lags.extend(lag - missed * BEAT_S for missed in range(int(lag / BEAT_S) + 1))
        if lag > HOLD_S:
            add_hold(lag)
        if lag > self._limit_s:
            note("loop.late", lag)
        self._due = now + BEAT_S

    def look(self) -> None:
        """Takes the stack, once for each overdue beat; says so, once for each culprit."""
        due = self._due
        late = self._clock() - due
        if late <= self._limit_s:
            return
        self._held()
        if due == self._seen or not self._waited_for():
            return
        stack, self._seen = _stack(self._frame()), due
        if stack not in self.culprits and len(self.culprits) >= CULPRITS:
            stack = OTHERS
        self.culprits[stack] = self.culprits.get(stack, 0) + 1
        if self.culprits[stack] == 1 and stack != OTHERS:
            level = logging.INFO if stack == ELSEWHERE else logging.WARNING  # nothing that an environment could mend
            log.log(
                level,
                "the event loop has been held up for %.2f s; every episode waits meanwhile. It is in:\n%s",
                late,
                stack,
            )

    def statistics(self) -> dict[str, float]:
        """ "lag_ms_p50", "lag_ms_p99" and "lag_ms_max" since the last call, and "held_up": how often, ever."""
        lags = sorted(self._lags) or [max(0.0, self._clock() - self._due)]
        self._lags.clear()
        return {
            "lag_ms_p50": 1e3 * lags[len(lags) // 2],
            "lag_ms_p99": 1e3 * lags[min(len(lags) - 1, int(0.99 * len(lags)))],
            "lag_ms_max": 1e3 * lags[-1],
            "held_up": float(sum(self.culprits.values())),
        }

    def _keep_beating(self) -> None:
        self.beat()
        self._next = self._loop.call_later(BEAT_S, self._keep_beating)

    def _run(self) -> None:
        while not self._stopping.wait(self._limit_s / 2):
            self.look()


def _is_idle(frame: FrameType | None) -> bool:
    """Whether the loop itself is innermost, and nothing that it called: from there out to its runner it is alone."""
    while frame is not None and frame.f_code.co_filename in LOOP_ITSELF:
        if frame.f_code.co_filename == asyncio.runners.__file__:
            return True
        frame = frame.f_back
    return False


def _stack(frame: FrameType | None) -> str:
    """What holds the loop's thread up, by its innermost frames."""
    if frame is None:
        return "unknown"
    if _is_idle(frame):
        return ELSEWHERE
    return "".join(traceback.format_list(traceback.extract_stack(frame)[-SHOWN:]))
