"""One round after another: takes jobs in, fills their prefixes, decodes, hands completions out.

Owns a cache and a pool on the device. Runs in one thread and never waits for anything but the device; does not know
threads, event loops' waits, how jobs got here, or of other workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from tunix_core.contracts import Cache, Completion
from tunix_core.engine.parameters import Parameters
from tunix_core.engine.prefix_cache import Key, PrefixCache
from tunix_core.engine.requests import Job, answer
from tunix_core.engine.slots import Decode, SlotTable
from tunix_core.engine.steps import Compiled, Programs, Sizes
from tunix_core.profiling import note, span

# Prompt tokens computed between two decode calls, per token that such a call computes. A slot that isn't filled yet
# costs its share of the call for nothing; those that decode must not wait for ever either.
FILL_SHARE = 4
Move = tuple[int, int, int]
COUNTERS = (
    "requests",
    "tokens_sampled",
    "prefill_tokens",
    "cached_tokens",
    "decode_calls",
    "decode_s",
    "prefill_calls",
    "decoding",
)


class Worker:
    """The engine without its thread.

    Args:
        index: which of the engine's workers this is.
        state: its cache, in pieces, and its pool, of zeros and its own.
        take: gives the next job for a free slot, or None; told whether jobs of other workers may be taken.
        put_back: takes jobs that were not begun, to be taken next, by whoever has a slot first.
        decode_text: gives the text of token ids.
        deterministic: whether what a request gets must not depend, to the bit, on the others; then prefixes are
            computed in chunks at multiples of the chunk, and only what was computed so is shared.
        recompute: whether new weights compute again what slots hold of their requests, rather than go on from what
            the weights before them computed.

    Attributes:
        counters: since the start, of COUNTERS; `decoding` is the share of slots that decode, summed over calls.
    """

    def __init__(
        self,
        index: int,
        parameters: Parameters,
        programs: Programs,
        sizes: Sizes,
        state: tuple[tuple[Cache, ...], Cache],
        *,
        take: Callable[[bool], Job | None],
        put_back: Callable[[list[Job]], None],
        decode_text: Decode,
        max_context: int,
        deterministic: bool,
        recompute: bool,
    ) -> None:
        self.index, self._parameters, self._programs, self._sizes = index, parameters, programs, sizes
        self._deterministic, self._recompute = deterministic, recompute
        self._take, self._put_back, self._decode_text = take, put_back, decode_text
        self._version, self._params = parameters.newest
        self._cache, self._pool = state
        self._slots = SlotTable(sizes, max_context)
        self._slotwise = self._slots.slotwise()
        self._prefix = PrefixCache(sizes.blocks, sizes.chunk, aligned=deterministic, version=self._version)
        self._since = [0.0] * sizes.slots  # when each slot was taken, of `perf_counter`
        self._coming: dict[Key, int] = {}  # blocks being computed, and by which slot
        self._behind: dict[Key, list[Job]] = {}  # jobs that wait for such a block rather than compute it again
        self._done: list[tuple[Job, Completion]] = []
        self.counters = dict.fromkeys(COUNTERS, 0.0)

    @property
    def idle(self) -> bool:
        """True when a round would have nothing to do but take new jobs."""
        return not (self._behind or self._done or self._slots.busy)

    def round(self) -> None:
        """One look at everything, and at most one decode call."""
        self._take_weights()
        self._drop_cancelled()
        self._admit()
        for _ in range(self._fills()):
            if not self._slots.filling.any():
                break
            with span("engine.prefill"):
                self._fill()
            self._admit()
        with span("engine.decode", version=self._version):
            self._decode()

    def statistics(self) -> dict[str, float]:
        """Counters since the start, and what is true now. May be called from any thread."""
        return {
            **self.counters,
            "slots_busy": self._slots.busy / self._sizes.slots,
            "prefix_blocks": float(len(self._prefix)),
            "programs": float(self._programs.count),
            "version": float(self._version),
        }

    # ---- jobs in and out ---------------------------------------------------------------------------
    def _admit(self) -> None:
        """Gives free slots to waiting jobs, with what the prefix cache has of their prefixes.

        Jobs behind a block are passed over, but no more of them than there are slots: other workers may take the rest.
        """
        moves: list[Move] = []
        while self._slots.has_free and self._passed_over < self._sizes.slots and (job := self._next()):
            if job.keys_version != self._version:
                job.keys, job.keys_version = self._prefix.keys(job.prefix), self._version
            match = self._prefix.match(job.prefix, job.keys)
            whole = match.length == len(job.prefix)
            if not whole and match.missing in self._coming:
                self._behind.setdefault(match.missing, []).append(job)
                continue
            slot = self._slots.admit(job, match.length)
            self._since[slot] = perf_counter()
            moves += [(slot, i * self._sizes.chunk, block) for i, block in enumerate(match.blocks)]
            self.counters["cached_tokens"] += match.length
            if not whole:
                for key in job.keys[match.length // self._sizes.chunk :]:
                    self._coming.setdefault(key, slot)
        self._cache = self._copy(self._programs.load, self._cache, self._pool, moves)

    @property
    def _passed_over(self) -> int:
        return sum(map(len, self._behind.values()))

    def _next(self) -> Job | None:
        """While jobs wait for a block that is being computed, its free slots are theirs: it takes no others' jobs."""
        while job := self._take(not self._behind):
            if not job.cancelled:
                return job
        return None

    def _drop_cancelled(self) -> None:
        for slot, job in enumerate(self._slots.jobs):
            if job is not None and job.cancelled:
                self._come([key for key in job.keys if self._coming.get(key) == slot])
                self._release(slot)

    def _deliver(self) -> None:
        if self._done:
            answer(self._done)
            self._done = []

    def _take_weights(self) -> None:
        """The newest weights, for every request from here on."""
        version, params = self._parameters.latest()
        if version == self._version:
            return
        self._version, self._params = version, params
        self._prefix.clear(version)
        self._come(list(self._coming))
        self._slots.outdate(all_of_it=self._recompute)

    def _fills(self) -> int:
        """How many prefill calls may come before the next decode call."""
        sizes = self._sizes
        return max(1, FILL_SHARE * sizes.steps * sizes.slots // (sizes.rows[-1] * sizes.chunk))

    # ---- device calls ------------------------------------------------------------------------------
    def _fill(self) -> None:
        """One prefill call: chunks of the slots that have waited longest."""
        table, sizes = self._slots, self._sizes
        slots, starts = table.to_fill(sizes.chunk, sizes.rows[-1])
        idle = next(r for r in sizes.rows if r >= len(slots)) - len(slots)  # rows that write nothing
        named = np.append(slots, np.zeros(idle, np.int64))
        at = np.append(starts, np.full(idle, sizes.length))[:, None] + np.arange(sizes.chunk)
        real = at < np.minimum(table.target[named], sizes.length)[:, None]
        tokens = np.where(real, table.tokens[named[:, None], np.minimum(at, sizes.length - 1)], 0)
        positions = np.where(real, at, sizes.length)
        self._cache = self._programs.prefill[len(named)](
            self._params, self._cache, tokens.astype(np.int32), positions.astype(np.int32), named.astype(np.int32)
        )
        self.counters["prefill_tokens"] += table.fill(slots, starts + sizes.chunk)
        self.counters["prefill_calls"] += 1
        slots = np.unique(slots)
        self._share(slots, partial=table.decoding[slots])

    def _decode(self) -> None:
        """One decode call; completions of the last one go out while the device works."""
        table = self._slots
        decoding = table.decoding.sum()
        if not decoding:
            return self._deliver()
        if table.changed:
            self._slotwise = table.slotwise()
        started = perf_counter()
        self._cache, out = self._programs.decode(self._params, self._cache, table.live(), self._slotwise)
        self._deliver()
        drawn = np.asarray(out)
        self.counters["decode_s"] += perf_counter() - started
        finished, kept = table.advance(drawn, self._version, self._decode_text)
        self.counters["decode_calls"] += 1
        self.counters["decoding"] += float(decoding) / self._sizes.slots
        self.counters["tokens_sampled"] += kept
        self.counters["requests"] += len(finished)
        if not self._deterministic:  # what decoding wrote differs from a prefill's by rounding
            self._share(finished, partial=np.ones(len(finished), bool))
        for slot in finished.tolist():
            job = table.jobs[slot]
            assert job is not None
            self._done.append((job, table.completion(slot)))
            self._release(slot)

    def _release(self, slot: int) -> None:
        table = self._slots
        number = self.index * self._sizes.slots + slot
        note("engine.slot", perf_counter() - self._since[slot], slot=number, tokens=int(table.length[slot]))
        table.release(slot)

    # ---- the prefix cache --------------------------------------------------------------------------
    def _share(self, slots: np.ndarray, partial: np.ndarray) -> None:
        """Offers what each slot has newly filled to the prefix cache: whole blocks, and a last partial one if asked."""
        moves: list[Move] = []
        for slot, with_partial in zip(slots.tolist(), partial.tolist(), strict=True):
            if self._slots.pure[slot]:
                filled = int(self._slots.filled[slot])
                moves += self._offer(slot, filled if with_partial else filled - filled % self._sizes.chunk)
        # A block may have been given up and given out again among these: what was written last is what it stands for.
        last = {move[2]: move for move in moves}
        self._pool = self._copy(self._programs.store, self._pool, self._cache, list(last.values()))

    def _offer(self, slot: int, end: int) -> list[Move]:
        """The copies that bring the slot's tokens up to `end` into the pool."""
        table, first = self._slots, int(self._slots.saved[slot]) // self._sizes.chunk
        if end <= table.saved[slot]:
            return []
        tokens = table.tokens[slot, :end]
        keys = table.keys[slot] = self._prefix.keys(tokens, table.keys[slot][:first])
        numbers = [(index, self._prefix.insert(tokens, keys, index)) for index in range(first, len(keys))]
        table.saved[slot] = end
        self._come([key for key in keys[first:] if self._coming.get(key) == slot])
        return [(slot, index * self._sizes.chunk, number) for index, number in numbers if number is not None]

    def _come(self, keys: Iterable[Key]) -> None:
        """These blocks are there, or will never be: whoever waited for them is looked at again, first."""
        waited = list[Job]()
        for key in keys:
            del self._coming[key]
            waited += self._behind.pop(key, [])
        if waited:
            self._put_back(waited)

    def _copy(self, program: Compiled, into: Any, source: Any, moves: list[Move]) -> Any:
        """Runs the moves, each (slot, start, block), by pieces of the cache, a page of them at a time."""
        limit = self._sizes.moves
        moves = sorted(moves, key=lambda move: move[1])
        for start in range(0, len(moves), limit):
            part = moves[start : start + limit]
            page = np.zeros((limit, 3), np.int32)
            page[: len(part)] = part
            bounds = np.searchsorted(page[: len(part), 1], (*self._sizes.starts, self._sizes.length))
            into = program(into, source, page, bounds.astype(np.int32))
        return into


def merged(each: Sequence[dict[str, float]]) -> dict[str, float]:
    """The statistics of all workers as one engine's: sums, but means of shares, and the oldest version."""
    total = {name: sum(one[name] for one in each) for name in each[0]}
    total["decoding"] /= max(1.0, total["decode_calls"])
    total["slots_busy"] /= len(each)
    return total | {"programs": each[0]["programs"], "version": min(one["version"] for one in each)}
