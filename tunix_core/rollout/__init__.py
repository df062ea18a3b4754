"""One episode: the engine and an environment take turns until it ends; gives a Trajectory.

Loss mask, log-probability and policy version are decided here, where tokens are born. Does not know groups,
mixtures or training.
"""
