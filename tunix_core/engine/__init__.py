"""Batched inference over token ids.

Takes requests of token ids; gives token ids, log-probabilities and the policy version of each. Does not know
text beyond stop strings, conversations or environments.
"""
