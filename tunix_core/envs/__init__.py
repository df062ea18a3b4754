"""Environments: the classes to subclass, the Gymnasium bridge, and the wall around a running one.

Gives an `EnvOpener` per suite. Does not know the policy, tokens or training.
"""
