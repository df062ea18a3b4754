"""Trajectories become packed batches, gradients, and new parameters.

Does not know environments, the engine, or where groups come from.
"""
