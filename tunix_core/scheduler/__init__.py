"""What to roll out next: the mixture, groups, staleness, retries, concurrency.

Takes suites, their tasks and the current policy version; gives finished groups to the trajectory queue.
Does not know tokens, gradients or what a reward means.
"""
