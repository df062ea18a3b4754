"""Spans and counters, with the standard library only. Any room may use it; it knows none."""
