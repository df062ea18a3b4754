"""What to roll out next: the mixture, groups, staleness, retries, concurrency.

Takes suites, their tasks and the current policy version; gives finished groups to the trajectory
queue. Does not know tokens, gradients or what a reward means.
"""

from tunix_core.scheduler.concurrency import Concurrency
from tunix_core.scheduler.failures import FailureLog
from tunix_core.scheduler.groups import SuitePlan
from tunix_core.scheduler.ledger import Ledger
from tunix_core.scheduler.mixture import Mixture
from tunix_core.scheduler.plan import StepPlan
from tunix_core.scheduler.scheduler import Scheduler

__all__ = ["Concurrency", "FailureLog", "Ledger", "Mixture", "Scheduler", "StepPlan", "SuitePlan"]
