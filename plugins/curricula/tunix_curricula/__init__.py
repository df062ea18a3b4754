"""Curricula for Tunix Core: which task comes next."""
