"""The command line. Parses, calls `run`, prints."""

from tunix_core.cli.app import main

__all__ = ["main"]
