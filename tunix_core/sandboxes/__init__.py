"""Where untrusted code runs: opened from an image with limits, closed exactly once.

Does not know environments or rewards.
"""
