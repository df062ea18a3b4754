"""Losses for Tunix Core: each algorithm is a pair of pure functions, found through the hook."""
