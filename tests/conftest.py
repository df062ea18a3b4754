"""Property tests draw the same examples every time, and have no deadline: a timing is not a test."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=False, database=None)
settings.load_profile("repeatable")
