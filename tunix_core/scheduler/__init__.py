"""What to roll out next: the mixture, groups, staleness, retries, concurrency.

Takes suites, their tasks and the current policy version; gives finished groups to the trajectory
queue. Does not know tokens, gradients or what a reward means.
"""

from tunix_core.scheduler.failures import FailureLog
from tunix_core.scheduler.mixture import Mixture
from tunix_core.scheduler.plan import StepPlan
from tunix_core.scheduler.scheduler import Scheduler, SuitePlan

__all__ = ["FailureLog", "Mixture", "Scheduler", "StepPlan", "SuitePlan"]
