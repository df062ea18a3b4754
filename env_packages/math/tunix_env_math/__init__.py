"""Arithmetic and calculator suites for Tunix Core, and the reward `math/verify`."""
