"""Jobs that wait for a slot: a line for each worker, and which worker a job is best served by.

Takes jobs; gives each worker the next one for it. Bookkeeping alone, under its caller's lock. Does not know what the
workers' prefix caches hold, which only their threads may touch: it remembers what it sent where, and so knows of
prefixes that are still being computed, too.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice, takewhile

import numpy as np

from tunix_core.contracts import Completion
from tunix_core.engine.prefix_cache import Key, keys_of
from tunix_core.engine.requests import Job

# How much busier than the others, in shares of its slots, a worker may be and still get a job whose whole prefix it
# has. A call decodes all slots at the price of one, so that until they are taken an imbalance costs little.
WORTH = 0.5
NEAR = 64  # jobs of a line that are looked at by a worker that takes one: all others wait meanwhile


class JobQueue:
    """First in, first out, for each worker.

    A job goes where the largest share of its prefix was sent before, unless that worker is busier by more than the
    share is worth while another has a slot left. So later turns find what their earlier ones computed, and a group its
    prompt; what everybody begins with is computed by each worker once they need it, and then draws nobody anywhere.
    Rather than to leave a slot empty, a worker takes the job out of another's line that has least to lose.

    Args:
        workers: how many; an attribute, too.
        slots: of each.
        chunk: tokens of a block of the prefix caches.
        blocks: how many of them are remembered, the newest; as many as the caches can hold.
    """

    def __init__(self, *, workers: int, slots: int, chunk: int, blocks: int) -> None:
        self.workers = workers
        self._slots, self._chunk, self._limit = slots, chunk, blocks
        self._lines: list[deque[Job]] = [deque() for _ in range(workers)]
        self._open = [0] * workers  # jobs that each worker serves or will
        self._sent: OrderedDict[Key, int] = OrderedDict()  # the workers that have a block, as bits; oldest first

    @property
    def waiting(self) -> int:
        """Jobs that their worker has no slot for."""
        return sum(max(0, jobs - self._slots) for jobs in self._open)

    def trail(self, tokens: np.ndarray, known: Sequence[Key] = ()) -> list[Key]:
        """The keys of int32 [T] tokens by which their way is remembered; `known` are the first ones. None for a worker
        without others: hashing is most of what a choice costs."""
        return keys_of(tokens, self._chunk, b"", known) if self.workers > 1 else []

    def put(self, job: Job) -> None:
        """Puts the job in the line of the worker that serves it best."""
        best = self._best(job.trail)
        job.sent_before = self._there(job.trail, best)
        self._give(job, best)
        self._lines[job.worker].append(job)

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Jobs that were taken and not begun: the next ones in the line of their worker."""
        for job in reversed(jobs):
            self._lines[job.worker].appendleft(job)

    def has(self, worker: int) -> bool:
        """Whether there may be a job for the worker to take."""
        return bool(self._lines[worker]) or self._crowded() is not None

    def take(self, worker: int, *, others: bool = True) -> Job | None:
        """The next job for the worker, which has a free slot: of its own line or, rather than to leave the slot
        empty, of the longest line of those who have none, if it takes `others`."""
        line = self._lines[worker]
        while line:
            if not (job := line.popleft()).cancelled:
                return job
        while others and (crowded := self._crowded()):
            if job := self._taken(crowded, worker):
                return job
        return None

    def served(self, job: Job, completion: Completion) -> None:
        """What the job got: its conversation goes on best where it was served."""
        tokens = np.concatenate([job.request.prompt, completion.tokens], dtype=np.int32)[:-1]
        self._remember(self.trail(tokens, job.trail[: len(job.prefix) // self._chunk]), job.worker)

    def end(self, job: Job) -> None:
        """The job is no more, whatever became of it. Called once for each."""
        self._open[job.worker] -= 1

    def _give(self, job: Job, worker: int) -> None:
        job.worker = worker
        self._open[worker] += 1
        self._remember(job.trail, worker)

    def _taken(self, line: deque[Job], worker: int) -> Job | None:
        """Of the next jobs in another's line the one that loses least by going to this worker, of such the first; None
        where all of them are cancelled, and then they are gone."""
        near = list(islice(line, NEAR))
        waiting = [job for job in near if not job.cancelled]
        if not waiting:
            for _ in near:
                line.popleft()
            return None
        job = min(waiting, key=lambda job: job.sent_before - self._there(job.trail, worker))
        line.remove(job)
        self._open[job.worker] -= 1
        self._give(job, worker)
        return job

    def _there(self, trail: Sequence[Key], worker: int) -> int:
        """How many blocks of a prefix were sent to the worker."""
        return sum(1 for _ in takewhile(lambda key: self._sent.get(key, 0) >> worker & 1, trail))

    def _best(self, trail: Sequence[Key]) -> int:
        least = min(self._open)
        # Where a worker has no slot left, one that has some takes from its line what has least to lose by it.
        room = least < self._slots and self._crowded() is None

        def score(worker: int) -> tuple[float, int]:
            busier = (self._open[worker] - least) / self._slots if room else 0.0
            return WORTH * self._there(trail, worker) / max(1, len(trail)) - busier, -self._open[worker]

        return max(range(len(self._open)), key=score)

    def _crowded(self) -> deque[Job] | None:
        """The longest line of those that wait for a slot; a line whose worker has some left will soon be taken."""
        full = [line for line, jobs in zip(self._lines, self._open, strict=True) if line and jobs > self._slots]
        return max(full, key=len, default=None)

    def _remember(self, trail: Sequence[Key], worker: int) -> None:
        for key in reversed(trail):  # beginnings last: they outlive what follows them
            self._sent[key] = self._sent.pop(key, 0) | 1 << worker
        while len(self._sent) > self._limit:
            self._sent.popitem(last=False)
