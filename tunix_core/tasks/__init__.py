"""Which problems, in which order.

Takes a task source and a split; gives tasks by cursor, resumable. Does not know environments, the policy,
or why a task is asked for.
"""
