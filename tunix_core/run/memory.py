"""Keeps freed memory in the process, where XLA's CPU backend asks for the same blocks at every call.

glibc maps large blocks afresh and gives them back when freed, so that every step faults its
temporaries in anew: with a million weights that is half the time of a training step.
"""

from __future__ import annotations

import ctypes
import sys

# From glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
TOP_PAD_BYTES = 64 << 20


def keep_freed_memory() -> bool:
    """Tells glibc to serve large blocks from the heap and to keep what is freed; True where it took effect.

    The process then holds the most it ever needed at once until it ends.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, TOP_PAD_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)
