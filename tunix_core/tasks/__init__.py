"""Which problems, in which order.

Takes a task source and a split; gives tasks by cursor, resumable. Does not know environments, the policy,
or why a task is asked for.
"""

from tunix_core.tasks.order import permuted
from tunix_core.tasks.sources import GeneratedSource, ListSource, length_of
from tunix_core.tasks.stream import TaskStream

__all__ = ["GeneratedSource", "ListSource", "TaskStream", "length_of", "permuted"]
