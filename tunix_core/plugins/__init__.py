"""Finds, checks, lists and explains what is installed.

Takes entry points of the group "tunix" and files named by the user; gives specs by id, the objects
behind them, and the hooks. A broken plugin is recorded and left out whole; it is fatal only when
one of its ids is asked for. Does not know environments, training or the command line.
"""

from tunix_core.plugins.hub import Hub
from tunix_core.plugins.records import KINDS, PluginRecord, Spec, describe_spec, hash_spec

__all__ = ["KINDS", "Hub", "PluginRecord", "Spec", "describe_spec", "hash_spec"]
