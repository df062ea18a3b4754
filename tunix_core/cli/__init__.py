"""The command line. Parses, calls `run`, prints."""
