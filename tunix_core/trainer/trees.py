"""Branches that begin alike, as one run of tokens in which what they share stands once.

Does not know rows, batches or samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunix_core.types import Row


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Branches laid out depth first, so that all that follows a token lies behind it, up to `seen_until`.

    Attributes:
        columns: of each branch, in the order given: int32 [its length], where its tokens lie.
        positions: int32 [T], how many tokens precede each in its branches.
        before: int32 [T], where the one just before it lies; its own column where there is none.
        seen_until: int32 [T], the column at which those that follow it end.
    """

    columns: tuple[np.ndarray, ...]
    positions: np.ndarray
    before: np.ndarray
    seen_until: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)


def grow(branches: Sequence[Row]) -> Tree:
    """The tree of the branches. A token that is trained in two of them stands twice, and what follows it.

    In the order of their tokens each branch shares with those before it just what it shares with the last.
    """
    most = sum(len(branch.tokens) for branch in branches)
    tokens, trained = np.zeros(most, np.int32), np.zeros(most, bool)
    positions, before, until = (np.zeros(most, np.int32) for _ in range(3))
    columns, path, end = dict[int, np.ndarray](), np.zeros(0, np.int32), 0
    for index in sorted(range(len(branches)), key=lambda i: branches[i].tokens.astype(">u4").tobytes()):
        branch = branches[index]
        born = branch.mask > 0
        shared = _shared(branch.tokens, born, tokens[path], trained[path])
        until[path[shared:]] = end
        new = np.arange(end, end + len(branch.tokens) - shared, dtype=np.int32)
        path = np.concatenate([path[:shared], new])
        tokens[path], positions[new] = branch.tokens, np.arange(shared, len(path))
        trained[path] |= born
        before[new] = path[np.maximum(positions[new] - 1, 0)]
        columns[index], end = path, end + len(new)
    until[path] = end
    return Tree(tuple(columns[i] for i in range(len(branches))), positions[:end], before[:end], until[:end])


def _shared(tokens: np.ndarray, born: np.ndarray, others: np.ndarray, trained: np.ndarray) -> int:
    """With how many of the path's tokens a branch begins."""
    length = min(len(tokens), len(others))
    differs = (tokens[:length] != others[:length]) | (born[:length] & trained[:length])
    return int(np.argmax(differs)) if differs.any() else length
