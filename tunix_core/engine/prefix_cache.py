"""Which block of the pool holds which prefix. Host bookkeeping only: the caller copies the blocks.

Takes token ids of prefixes; gives block numbers. A block holds keys and values of up to `chunk` tokens,
starting at a multiple of it, and is known by everything up to its end: a chain of digests over (policy version,
tokens). Does not know slots, requests or devices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

Key = bytes


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One block of the pool: its number, its own tokens (int32 [T], T <= chunk), and where it hangs."""

    number: int
    tokens: np.ndarray
    parent: tuple[Key, int]


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prefix is there.

    Attributes:
        blocks: numbers of the blocks to copy, from the prefix's start.
        length: tokens they cover.
        missing: the key of the first block that isn't there whole; None when all of them are.
    """

    blocks: tuple[int, ...]
    length: int
    missing: Key | None


def keys_of(tokens: np.ndarray, chunk: int, root: bytes, known: Sequence[Key] = ()) -> list[Key]:
    """A key for each block of int32 [T] tokens, the last one perhaps partial; `known` are its first ones."""
    keys = list(known)
    for start in range(len(keys) * chunk, len(tokens), chunk):
        parent = keys[-1] if keys else root
        keys.append(blake2b(parent + tokens[start : start + chunk].tobytes(), digest_size=16).digest())
    return keys


class PrefixCache:
    """An index over a pool of blocks, evicting what was used longest ago.

    Args:
        blocks: size of the pool; at least 1.
        chunk: tokens of a block.
        aligned: whether a match may end only at a multiple of `chunk` or at the prefix's own end, so that what
            remains is computed in the same chunks, hit or miss.
        version: the policy version to begin with.
    """

    def __init__(self, blocks: int, chunk: int, *, aligned: bool, version: int) -> None:
        self.blocks, self.chunk, self.aligned = blocks, chunk, aligned
        self.clear(version)

    def __len__(self) -> int:
        return len(self._by_key)

    def clear(self, version: int) -> None:
        """Forgets every block: those of another version never match."""
        self.version = version
        self._root = version.to_bytes(8, "little", signed=True)
        self._by_key: OrderedDict[Key, Block] = OrderedDict()  # the one used longest ago comes first
        self._children: dict[tuple[Key, int], list[Key]] = {}
        self._free = list(range(self.blocks))

    def keys(self, tokens: np.ndarray, known: Sequence[Key] = ()) -> list[Key]:
        """`keys_of` the tokens, for this version."""
        return keys_of(tokens, self.chunk, self._root, known)

    def match(self, tokens: np.ndarray, keys: Sequence[Key]) -> Match:
        """The longest prefix of int32 [T] tokens that is there; `keys` are theirs. Counts as a use."""
        found = 0
        while found < len(keys) and keys[found] in self._by_key:
            found += 1
        for key in reversed(keys[:found]):  # parents last: a block outlives what hangs on it
            self._by_key.move_to_end(key)
        blocks = tuple(self._by_key[key].number for key in keys[:found])
        if found == len(keys):
            return Match(blocks, len(tokens), None)
        covered = found * self.chunk
        child, shared = self._nearest_child(keys[found - 1] if found else self._root, tokens[covered:])
        if child is not None and (covered + shared == len(tokens) or (shared and not self.aligned)):
            return Match((*blocks, child.number), covered + shared, keys[found])
        return Match(blocks, covered, keys[found])

    def insert(self, tokens: np.ndarray, keys: Sequence[Key], index: int) -> int | None:
        """Makes room for block `index` of int32 [T] tokens: its number in the pool, or None if it is there already.

        Partial blocks that this one continues give up theirs.
        """
        if keys[index] in self._by_key:
            self._by_key.move_to_end(keys[index])
            return None
        own = tokens[index * self.chunk : (index + 1) * self.chunk].copy()
        parent = (keys[index - 1] if index else self._root, int(own[0]))
        for key in list(self._children.get(parent, ())):
            shorter = self._by_key[key].tokens
            if len(shorter) < len(own) and (own[: len(shorter)] == shorter).all():
                self._remove(key)
        if not self._free:
            self._remove(next(iter(self._by_key)))
        block = Block(self._free.pop(), own, parent)
        self._by_key[keys[index]] = block
        self._children.setdefault(parent, []).append(keys[index])
        return block.number

    def _nearest_child(self, parent: Key, rest: np.ndarray) -> tuple[Block | None, int]:
        """The block below `parent` that shares most first tokens with `rest`, and how many."""
        best: tuple[Block | None, int] = (None, 0)
        for key in self._children.get((parent, int(rest[0])), ()):
            block = self._by_key[key]
            length = min(len(block.tokens), len(rest))
            differs = block.tokens[:length] != rest[:length]
            shared = int(differs.argmax()) if differs.any() else length
            if shared > best[1]:
                best = (block, shared)
        return best

    def _remove(self, key: Key) -> None:
        block = self._by_key.pop(key)
        self._free.append(block.number)
        self._children[block.parent].remove(key)
        if not self._children[block.parent]:
            del self._children[block.parent]
