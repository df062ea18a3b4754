"""Which worker serves a job."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tunix_core.contracts import Completion, GenerateRequest, Sampling
from tunix_core.engine.job_queue import NEAR, JobQueue
from tunix_core.engine.requests import Job

CHUNK = 4


class Rig:
    """Two workers of eight slots, and jobs that are put, taken and served."""

    def __init__(self, workers: int = 2, slots: int = 8, blocks: int = 1000) -> None:
        self.queue = JobQueue(workers=workers, slots=slots, chunk=CHUNK, blocks=blocks)

    def put(self, tokens: Any) -> Job:
        prompt = np.asarray(tokens, np.int32)
        prefix = prompt[:-1]
        nobody: Any = None
        job = Job(GenerateRequest(prompt, Sampling(), 0, 1), nobody, nobody, prefix, self.queue.trail(prefix))
        self.queue.put(job)
        return job

    def take(self, worker: int) -> Job:
        job = self.queue.take(worker)
        assert job is not None
        return job

    def serve(self, job: Job, said: Any) -> np.ndarray:
        """Ends the job; the conversation so far."""
        tokens = np.asarray(said, np.int32)
        self.queue.served(job, Completion(tokens, np.zeros(0), np.zeros(0), tokens, "length", 0))
        self.queue.end(job)
        return np.concatenate([job.request.prompt, tokens])


def prompt(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, length]).integers(0, 1000, length)


def test_groups_stay_together_and_workers_share_them_out() -> None:
    rig = Rig()
    found = [{rig.put(prompt(30, seed=group)).worker for _ in range(4)} for group in range(4)]
    assert sorted(map(list, found)) == [[0], [0], [1], [1]]


def test_a_group_too_large_for_one_worker_is_split() -> None:
    rig = Rig()
    where = Counter(rig.put(prompt(30, seed=1)).worker for _ in range(16))
    assert where[0] == where[1] == 8


def test_what_everybody_begins_with_draws_nobody_to_one_worker() -> None:
    rig, shared = Rig(), prompt(200, seed=0)
    jobs = [rig.put(np.append(shared, prompt(9, seed=1 + i))) for i in range(16)]
    assert Counter(job.worker for job in jobs) == {0: 8, 1: 8} and rig.queue.waiting == 0
    for job in jobs:
        rig.serve(job, [1])
    again = [rig.put(np.append(shared, prompt(9, seed=100 + i))).worker for i in range(6)]
    assert sorted(again) == [0, 0, 0, 1, 1, 1]


def test_a_later_turn_goes_where_its_earlier_ones_are() -> None:
    rig, shared = Rig(), prompt(12, seed=0)
    first = [rig.put(np.append(shared, prompt(9, seed=1 + i))) for i in range(16)]
    where = [job.worker for job in first]
    history = [rig.serve(job, prompt(8, seed=50 + i)) for i, job in enumerate(first)]
    for i in (3, 2, 9, 8, 15, 14, 4, 5):  # in any order
        assert rig.put(np.append(history[i], [1, 2])).worker == where[i]


def test_a_member_of_a_split_group_goes_on_where_it_was_served() -> None:
    rig = Rig()
    jobs = [rig.put(prompt(9, seed=1)) for _ in range(16)]
    where = [job.worker for job in jobs]
    history = [rig.serve(job, prompt(8, seed=50 + i)) for i, job in enumerate(jobs)]
    for told, worker in zip(history, where, strict=True):
        again = rig.put(np.append(told, [1, 2]))
        assert again.worker == worker
        rig.queue.end(again)


def test_while_no_slot_is_left_anywhere_a_conversation_waits_where_its_earlier_turns_are() -> None:
    rig = Rig()
    first = [rig.put(prompt(20, seed=i)) for i in range(16)]
    where = [job.worker for job in first]
    assert Counter(where) == {0: 8, 1: 8}
    histories = [rig.serve(job, [1, 2]) for job in first if job.worker == 0]
    new = [rig.put(prompt(20, seed=100 + i)).worker for i in range(8)]
    assert new == [0] * 8  # which had slots left; now nobody has
    assert [rig.put(np.append(history, [3, 4])).worker for history in histories] == [0] * 8


def test_while_others_wait_for_a_worker_a_conversation_waits_there_too_and_the_other_one_takes_new_ones() -> None:
    rig = Rig(slots=1)
    first = rig.put(prompt(40, seed=0))
    assert rig.take(0) is first
    told = rig.serve(first, [1])
    busy = [rig.put(prompt(9, seed=seed)) for seed in (1, 2)]
    assert [rig.take(job.worker) for job in busy] == busy
    new = rig.put(prompt(9, seed=3))
    assert new.worker == 0
    rig.queue.end(busy[1])
    later = rig.put(told)
    assert later.worker == 0 and rig.take(1) is new


def test_a_part_of_a_prefix_is_worth_a_part_of_the_slots() -> None:
    """Half of it: until a worker is busier by a quarter of them."""
    rig = Rig()
    told = rig.serve(rig.put(prompt(16, seed=0)), [1, 2])
    where = [rig.put(np.append(told[:16], prompt(17, seed=1 + i))).worker for i in range(3)]
    assert where == [0, 0, 1]


def test_each_worker_takes_its_own_in_order() -> None:
    rig = Rig()
    jobs = [rig.put(prompt(30, seed=i)) for i in range(6)]
    for worker in (0, 1):
        own = [job for job in jobs if job.worker == worker]
        assert [rig.take(worker) for _ in own] == own
        assert not rig.queue.has(worker) and rig.queue.take(worker) is None


def test_a_free_slot_takes_what_waits_for_one_elsewhere_and_the_next_turn_follows() -> None:
    rig = Rig(slots=1)
    told = rig.serve(rig.put(prompt(40, seed=0)), [1])
    assert rig.queue.take(0) is not None
    serving, waiting = rig.put(told), rig.put(prompt(9, seed=1))
    other = rig.put(prompt(9, seed=2))
    assert [serving.worker, waiting.worker, other.worker] == [0, 1, 0] and rig.queue.waiting == 1
    assert rig.take(0) is serving and rig.take(1) is waiting
    rig.queue.end(waiting)
    assert rig.queue.take(1, others=False) is None, "its slots are wanted by jobs of its own"
    assert rig.queue.has(1) and rig.take(1) is other and other.worker == 1
    later = rig.serve(other, prompt(8, seed=3))
    rig.queue.end(serving)
    assert rig.put(later).worker == 1


def test_of_what_waits_elsewhere_it_takes_what_has_least_to_lose() -> None:
    """A later turn stays where its conversation is, and so does a member of a group, while another waits too."""
    rig = Rig(slots=1)
    first = rig.put(prompt(40, seed=0))
    assert rig.take(0) is first
    told = rig.serve(first, [1])
    busy = rig.put(prompt(9, seed=1)), rig.put(prompt(9, seed=2))
    assert [rig.take(0), rig.take(1)] == list(busy)
    later, member = rig.put(told), rig.put(np.append(told[:20], prompt(9, seed=3)))
    gone, new = (rig.put(np.append(told[:4], prompt(30, seed=seed))) for seed in (4, 5))
    assert {job.worker for job in (later, member, gone, new)} == {0}
    gone.cancelled = True
    for end in (busy[1], gone):
        rig.queue.end(end)
    for job in (new, member, later):
        assert rig.take(1) is job and job.worker == 1
        rig.queue.end(job)
    assert rig.queue.take(1) is None


def test_what_was_taken_and_not_begun_is_next_for_its_worker_and_may_be_taken_by_another() -> None:
    rig = Rig(slots=1)
    jobs = [rig.put(prompt(30, seed=0)) for _ in range(5)]
    own = [job for job in jobs if job.worker == 0]
    assert len(own) > 2 and [rig.take(0) for _ in own] == own
    rig.queue.put_back(own[1:])
    assert rig.take(0) is own[1]
    other = [job for job in jobs if job.worker == 1]
    assert [rig.take(1) for _ in other] == other
    assert rig.take(1) is own[2] and own[2].worker == 1


@pytest.mark.parametrize(("before", "found"), [(NEAR - 1, True), (NEAR, False)])
def test_a_worker_that_takes_one_looks_at_the_next_few_of_a_line_alone(before: int, found: bool) -> None:
    """All others wait meanwhile. The one with least to lose stands behind so many."""
    rig = Rig(slots=1, blocks=10_000)
    told = rig.serve(rig.put(prompt(40, seed=0)), [1])
    assert rig.queue.take(0) is not None
    busy = rig.put(prompt(9, seed=1)), rig.put(prompt(9, seed=2))
    assert [rig.take(0), rig.take(1)] == list(busy)
    later = [rig.put(told) for _ in range(before)]
    new = rig.put(np.append(told[:4], prompt(9, seed=3)))
    assert {job.worker for job in (*later, new)} == {0}
    rig.queue.end(busy[1])
    assert rig.take(1) is (new if found else later[0])


def test_a_line_of_cancelled_jobs_is_no_work() -> None:
    rig = Rig(slots=1)
    jobs = [rig.put(prompt(9, seed=i)) for i in range(6)]
    for job in jobs[2:]:
        job.cancelled = True
    assert [rig.take(job.worker) for job in jobs[:2]] == jobs[:2]
    rig.queue.end(jobs[1])
    assert rig.queue.take(1) is None and rig.queue.take(0) is None


def test_nobody_takes_what_another_has_slots_for() -> None:
    rig = Rig()
    rig.put(prompt(30, seed=0))
    assert not rig.queue.has(1) and rig.queue.take(1) is None
    assert rig.queue.has(0)


def test_what_is_cancelled_is_passed_over() -> None:
    rig = Rig(workers=1, slots=2)
    first, second = rig.put([1, 2, 3]), rig.put([1, 2, 3])
    first.cancelled = True
    rig.queue.end(first)
    assert rig.take(0) is second and rig.queue.take(0) is None


@pytest.mark.parametrize(("blocks", "remembered"), [(1000, True), (20, False)])
def test_what_was_sent_longest_ago_is_forgotten(blocks: int, remembered: bool) -> None:
    rig = Rig(blocks=blocks)
    told = rig.serve(rig.put(prompt(30, seed=0)), [1, 2])
    for i in range(3):
        rig.serve(rig.put(prompt(40, seed=1 + i)), [1])
    rig.put(prompt(30, seed=9))  # makes the first worker the busier
    assert rig.put(told).worker == (0 if remembered else 1)
