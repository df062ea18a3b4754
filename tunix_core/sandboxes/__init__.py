"""Where untrusted code runs: opened from an image with limits, closed exactly once.

Does not know environments or rewards.
"""

from tunix_core.contracts import (
    ExecResult,
    Sandbox,
    Sandboxes,
    SandboxLimits,
    SandboxRequest,
    Shell,
)
from tunix_core.errors import SandboxError

__all__ = [
    "ExecResult",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxRequest",
    "Sandboxes",
    "Shell",
]
