"""Scores a trajectory before its sandbox closes, then the group.

Takes an Episode; gives a Score. Does not know tokens, the policy or training.
"""
