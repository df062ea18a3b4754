"""Tools that work in a sandbox."""
