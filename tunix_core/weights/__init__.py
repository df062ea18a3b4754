"""Publishes version n of the parameters; engines pick it up. Reading never waits."""
