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

__all__ = [
    "ExecResult",
    "Sandbox",
    "SandboxLimits",
    "SandboxRequest",
    "Sandboxes",
    "Shell",
]
