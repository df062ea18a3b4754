"""Which suites have been silent for too long, and what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from tunix_core.config import SchedulerConfig
from tunix_core.errors import SuiteStarved
from tunix_core.scheduler.mixture import Mixture
from tunix_core.scheduler.plan import StepPlan


class Patience:
    """Keeps, per suite, since when it has delivered nothing while something was owed.

    Args:
        suites: their names.
        clock: seconds.
        example: a suite's commonest failure in words, or "".
    """

    def __init__(
        self, suites: Iterable[str], mixture: Mixture, config: SchedulerConfig, clock: Callable[[], float]
    ) -> None:
        self._mixture, self._config, self._clock = mixture, config, clock
        self._heard = dict.fromkeys(suites, clock())

    def heard(self, suite: str) -> None:
        """`suite` delivered, or owes nothing."""
        self._heard[suite] = self._clock()

    def opened(self, plan: StepPlan) -> None:
        """A step opened: who owes nothing from before can't have kept anybody waiting."""
        for suite in self._heard:
            if plan.debt(suite) == 0:
                self.heard(suite)

    def look(self, plan: StepPlan) -> tuple[list[str], float | None]:
        """Excuses the suites that are late; (those too far behind, seconds until the next may be late, if any).

        An excused suite's places stay due: they are its debt. One that would then owe more than
        `max_debt_steps` quotas is not excused, and named. `plan` may keep a suite from being excused.
        """
        starved, wait_s = [], math.inf
        for suite in plan.missing:
            left_s = self._heard[suite] + self._config.suite_patience_s - self._clock()
            if left_s > 0:
                wait_s = min(wait_s, left_s)
            elif plan.left(suite) > self._allowed(suite, plan.version):
                starved.append(suite)
            else:
                plan.excuse(suite)
        return starved, None if math.isinf(wait_s) else wait_s

    def error(self, suite: str, example: str) -> SuiteStarved:
        """What ends the run."""
        seconds = self._clock() - self._heard[suite]
        config = self._config
        return SuiteStarved(
            f"suite {suite!r} has delivered no group for {seconds:.3g} s (scheduler.suite_patience_s is "
            f"{config.suite_patience_s:g}) and would owe more than {config.max_debt_steps} step(s) "
            f"(scheduler.max_debt_steps); {example or 'none of its episodes failed'}. Look at why it is slow, raise "
            'one of these, or set scheduler.on_starved = "drop" to go on without it.'
        )

    def _allowed(self, suite: str, version: int) -> int:
        """The places of the last `max_debt_steps` steps, this one included."""
        since = max(0, version + 1 - self._config.max_debt_steps)
        return self._mixture.total(suite, version + 1) - self._mixture.total(suite, since)
