"""A seeded permutation of 0..n-1, one place at a time, without ever holding the whole of it."""

from __future__ import annotations

from hashlib import blake2b

_ROUNDS = 6


def permuted(place: int, length: int, *, seed: int, epoch: int = 0) -> int:
    """What stands at `place` in the permutation of range(length) that (seed, epoch) names.

    A Feistel network over the smallest even number of bits that holds `length` is a permutation of
    a domain at most four times too large; walking it until it falls below `length` makes it exact.
    """
    if not 0 <= place < length:
        raise ValueError(f"place {place} is outside of range({length})")
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    key = blake2b(f"{seed}:{epoch}".encode(), digest_size=32).digest()
    found = _feistel(place, half, key)
    while found >= length:
        found = _feistel(found, half, key)
    return found


def _feistel(value: int, half: int, key: bytes) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(_ROUNDS):
        digest = blake2b(b"%d:%d" % (number, right), key=key, digest_size=8).digest()
        left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
    return left << half | right
