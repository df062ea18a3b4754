"""Public helpers for tests: a fake engine, an echo environment, a manual clock, and `check_*` functions."""
