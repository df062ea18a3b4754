"""What the host knows of each slot: its tokens, where it stands, how it draws. NumPy, vectorised over slots.

Does not know devices, queues or the prefix cache. S slots, L cache length, K fused steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tunix_core.contracts import Completion, GenerateRequest
from tunix_core.engine.prefix_cache import Key
from tunix_core.engine.requests import Job
from tunix_core.engine.sampling import Settings
from tunix_core.engine.steps import NONE, Live, Sizes, Slotwise

HALF = 0xFFFFFFFF
Decode = Callable[[np.ndarray], str]


class SlotTable:
    """The state of all slots, as arrays over [S].

    A slot is free, filling (its prefix is not yet whole in the device's cache) or decoding.

    Attributes:
        jobs: the request each slot serves, None where free.
        keys: the prefix-cache keys of each slot's blocks so far.
        filling, decoding: bool [S].
        filled: tokens whose keys and values are in the slot's device cache.
        saved: tokens of those that were offered to the prefix cache.
        target: tokens of the prefix, which must be filled before decoding.
        cached: tokens of the prefix that came from the prefix cache.
        pure: bool, False when the slot's device cache holds values of more than one policy version.
        tokens: int32 [S, L], the prompt and what was sampled, by absolute position.
        length: how many of `tokens` there are.
        changed: whether `slotwise` would give other values than at its last call.
    """

    def __init__(self, sizes: Sizes, max_context: int) -> None:
        slots, grid = sizes.slots, (sizes.slots, sizes.length)
        self._max_context = max_context
        self.jobs: list[Job | None] = [None] * slots
        self.keys: list[list[Key]] = [[] for _ in range(slots)]
        self.filling, self.decoding = np.zeros(slots, bool), np.zeros(slots, bool)
        self.filled, self.saved, self.target, self.cached = np.zeros((4, slots), np.int64)
        self.pure, self.changed = np.ones(slots, bool), True
        self.tokens = np.zeros(grid, np.int32)
        self.length = np.ones(slots, np.int64)
        self._logprobs, self._full = np.zeros(grid, np.float32), np.zeros(grid, np.float32)
        self._versions = np.zeros(grid, np.int32)
        self._remaining, self._arrival = np.zeros((2, slots), np.int64)
        self._stopped, self._has_texts = np.zeros((2, slots), bool)
        self._seed, self._stops = np.zeros((slots, 2), np.uint32), np.full((slots, sizes.stops), NONE, np.int32)
        self._temperature, self._top_p = np.ones((2, slots), np.float32)
        self._min_p, self._top_k = np.zeros(slots, np.float32), np.zeros(slots, np.int32)
        self._free, self._admitted = list(range(slots))[::-1], 0

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    @property
    def busy(self) -> int:
        return len(self.jobs) - len(self._free)

    def admit(self, job: Job, cached: int) -> int:
        """Gives the job a slot whose first `cached` tokens are being copied in; the slot's index."""
        slot, request = self._free.pop(), job.request
        prompt, self._admitted = len(request.prompt), self._admitted + 1
        self.jobs[slot], self.keys[slot] = job, list(job.keys)
        self.filled[slot] = self.saved[slot] = self.cached[slot] = cached
        self.target[slot], self._arrival[slot] = prompt - 1, self._admitted
        self.pure[slot], self._stopped[slot] = True, False
        self.tokens[slot, :prompt], self.length[slot] = request.prompt, prompt
        self._remaining[slot] = min(request.max_tokens, self._max_context - prompt)
        self._settle(slot, request)
        self.filling[slot] = cached < prompt - 1
        self.decoding[slot] = not self.filling[slot]
        return slot

    def outdate(self, *, all_of_it: bool) -> None:
        """New weights: what slots hold in the device's cache is an older version's.

        Args:
            all_of_it: fill all of it again. Else only where nothing was sampled yet: no token says by its version
                that its context is older, so that context must not be.
        """
        busy = self.filling | self.decoding
        asked = np.array([len(job.request.prompt) if job else 0 for job in self.jobs])
        again = busy & (all_of_it | (self.length == asked))
        self.filled[again] = self.saved[again] = 0
        self.target[again] = self.length[again] - 1
        self.filling = np.where(again, self.target > 0, self.filling)
        self.decoding = busy & ~self.filling
        self.pure[:] = again | ~busy
        for slot in np.flatnonzero(again).tolist():
            self.keys[slot] = []

    def release(self, slot: int) -> None:
        """Makes the slot free."""
        self.jobs[slot] = None
        self.filling[slot] = self.decoding[slot] = False
        # Nothing to truncate where nobody draws: an idle slot must not cost the others that path.
        self._top_k[slot], self._top_p[slot], self._min_p[slot] = 0, 1, 0
        self.changed = True
        self._free.append(slot)

    def to_fill(self, chunk: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Up to `limit` chunks that slots lack: of which slot each is, and where it starts. First the next one of each,
        the oldest slot first, then those after them: a long prefix holds up no other, and has the rows that are left.
        """
        slots = np.flatnonzero(self.filling)
        slots = slots[np.argsort(self._arrival[slots])]
        ahead = np.arange(limit)[:, None] * chunk + self.filled[slots]
        depths, order = np.nonzero(ahead < self.target[slots])
        return slots[order[:limit]], ahead[depths, order][:limit]

    def fill(self, slots: np.ndarray, ends: np.ndarray) -> int:
        """Counts each slot as filled up to where it ends, its target at most; how many tokens that were."""
        before = self.filled.sum()
        np.maximum.at(self.filled, slots, np.minimum(ends, self.target[slots]))
        whole = slots[self.filled[slots] == self.target[slots]]
        self.filling[whole], self.decoding[whole] = False, True
        return int(self.filled.sum() - before)

    def live(self) -> Live:
        """Where each slot stands, for the decode program."""
        last = self.length - 1
        token = self.tokens[np.arange(len(last)), last]
        remaining = np.where(self.decoding, self._remaining, 0)
        return Live(token, last.astype(np.int32), remaining.astype(np.int32))

    def slotwise(self) -> Slotwise:
        """How each slot draws and stops, for the decode program; copies, since a device may keep them."""
        self.changed = False
        each = (self._seed, self._temperature, self._top_k, self._top_p, self._min_p)
        return Slotwise(Settings(*(array.copy() for array in each)), self._stops.copy())

    def advance(self, out: np.ndarray, version: int, decode: Decode) -> tuple[np.ndarray, int]:
        """Takes in what the decode program gave, int32 [K, 3, S].

        Returns:
            the slots that are finished, and how many tokens were kept.
        """
        steps, slots = np.nonzero(out[:, 0] != NONE)
        at = self.length[slots] + steps
        self.tokens[slots, at] = out[steps, 0, slots]
        self._logprobs[slots, at] = out[steps, 1, slots].view(np.float32)
        self._full[slots, at] = out[steps, 2, slots].view(np.float32)
        self._versions[slots, at] = version
        counts = np.bincount(slots, minlength=len(self.jobs))
        self.length += counts
        self._remaining -= counts
        self.filled[self.decoding] = self.length[self.decoding] - 1
        last = self.tokens[np.arange(len(counts)), self.length - 1]
        self._stopped |= (counts > 0) & (self._stops == last[:, None]).any(axis=1)
        watched = np.flatnonzero(self.decoding & self._has_texts)
        cut = sum(self._cut_at_text(slot, int(counts[slot]), decode) for slot in watched.tolist())
        return np.flatnonzero(self.decoding & (self._stopped | (self._remaining == 0))), len(slots) - cut

    def completion(self, slot: int) -> Completion:
        """What the slot's request gets."""
        request = self._request(slot)
        sampled = slice(len(request.prompt), int(self.length[slot]))
        reason = "length" if sampled.stop - sampled.start >= request.max_tokens else "context"
        return Completion(
            tokens=self.tokens[slot, sampled].copy(),
            logprobs=self._logprobs[slot, sampled].copy(),
            full_logprobs=self._full[slot, sampled].copy(),
            versions=self._versions[slot, sampled].copy(),
            finish_reason="stop" if self._stopped[slot] else reason,
            cached_tokens=int(self.cached[slot]),
        )

    def _settle(self, slot: int, request: GenerateRequest) -> None:
        sampling, self.changed = request.sampling, True
        self._seed[slot] = (request.seed >> 32) & HALF, request.seed & HALF
        self._temperature[slot], self._top_k[slot] = sampling.temperature, sampling.top_k
        self._top_p[slot], self._min_p[slot] = sampling.top_p, sampling.min_p
        self._has_texts[slot] = bool(request.stop_texts)
        self._stops[slot] = NONE
        self._stops[slot, : len(request.stop_tokens)] = request.stop_tokens

    def _cut_at_text(self, slot: int, new: int, decode: Decode) -> int:
        """Ends the slot at the token that completes a stop text; how many tokens after it were dropped."""
        request, length = self._request(slot), int(self.length[slot])
        sampled = self.tokens[slot, len(request.prompt) : length]
        kept = _completing(sampled, new, request.stop_texts, decode)
        if kept is None:
            return 0
        self._stopped[slot] = True
        self.length[slot] = len(request.prompt) + kept
        self.filled[slot] = self.length[slot] - 1
        return len(sampled) - kept

    def _request(self, slot: int) -> GenerateRequest:
        job = self.jobs[slot]
        assert job is not None
        return job.request


def _completing(sampled: np.ndarray, new: int, stops: Sequence[str], decode: Decode) -> int | None:
    """How many tokens it takes until the text has a stop; only the last `new` tokens can complete one."""

    def complete(count: int) -> bool:
        text = decode(sampled[:count])
        return any(stop in text for stop in stops)

    if not complete(len(sampled)):
        return None
    return next(count for count in range(len(sampled) - new + 1, len(sampled) + 1) if complete(count))
