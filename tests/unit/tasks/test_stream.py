"""The stream of tasks: no ticket is lost, none is consumed twice, over any schedule and restarts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tunix_core.errors import CheckpointError, SuiteStarved, UsageError
from tunix_core.tasks import GeneratedSource, ListSource, TaskStream, length_of
from tunix_core.types import Task


def source_of(length: int) -> ListSource:
    return ListSource([Task(f"t{i}") for i in range(length)])


class Rotating:
    """A curriculum: a step on from the best of what it knows, a function of cursor and scores."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def next_index(self, cursor: int, length: int | None) -> int:
        return (cursor * 3 + len(self.seen)) % (length or 1000)

    def observe(self, index: int, scores: Sequence[float]) -> None:
        self.seen.append([index, *scores])

    def state(self) -> dict[str, object]:
        return {"seen": self.seen}

    def restore(self, state: Mapping[str, list[list[float]]]) -> None:
        self.seen = list(state["seen"])


def ids(stream: TaskStream, count: int) -> list[str]:
    taken = [stream.take() for _ in range(count)]
    for ticket, _ in taken:
        stream.consume(ticket)
    return [task.id for _, task in taken]


class Schedule(RuleBasedStateMachine):
    """Random take / consume / give back / checkpoint / crash, against a plain model of it."""

    taken = Bundle("taken")

    @initialize(length=st.integers(1, 7), seed=st.integers(0, 3), chosen=st.booleans())
    def begin(self, length: int, seed: int, chosen: bool) -> None:
        self.length, self.seed, self.chosen = length, seed, chosen
        self.stream = self.make()
        self.tasks: dict[int, str] = {}
        self.done: list[int] = []
        self.open: set[int] = set()
        self.back: set[int] = set()
        self.back_once: set[int] = set()
        self.saved: tuple[str, list[int]] | None = None

    def make(self) -> TaskStream:
        return TaskStream(source_of(self.length), seed=self.seed, curriculum=Rotating() if self.chosen else None)

    @rule(target=taken)
    def take(self) -> int:
        ticket, task = self.stream.take()
        assert ticket not in self.open and ticket not in self.done
        if self.back:
            assert ticket == min(self.back), "what came back goes first, in its order"
            self.back.remove(ticket)
        assert task == self.stream.task_at(ticket)
        if ticket in self.back_once:
            assert task.id == self.tasks[ticket], "what came back is the same task"
        self.tasks[ticket] = task.id
        self.open.add(ticket)
        return ticket

    @rule(ticket=consumes(taken))
    def consume(self, ticket: int) -> None:
        if ticket in self.open:  # a crash may have taken it away
            self.stream.consume(ticket, [float(ticket), 0.0])
            self.open.remove(ticket)
            self.done.append(ticket)

    @rule(ticket=consumes(taken))
    def give_back(self, ticket: int) -> None:
        if ticket in self.open:
            self.stream.give_back(ticket)
            self.open.remove(ticket)
            self.back.add(ticket)
            self.back_once.add(ticket)

    @rule()
    def learn(self) -> None:
        self.stream.learn()

    @rule()
    def checkpoint(self) -> None:
        self.saved = json.dumps(self.stream.state()), list(self.done)

    @rule(finished=st.sets(st.integers(0, 30)))
    def crash(self, finished: set[int]) -> None:
        if self.saved:
            state, self.done = json.loads(self.saved[0]), list(self.saved[1])
            self.stream = self.make()
            self.open = finished & set(state["unconsumed"])
            self.stream.restore(state, self.open)
            self.back = set(state["unconsumed"]) - self.open
            self.back_once = set(state["unconsumed"])

    @invariant()
    def nothing_is_lost_or_done_twice(self) -> None:
        known = [*self.done, *self.open, *self.back]
        assert sorted(known) == list(range(self.stream.state()["next"]))
        assert self.stream.state()["unconsumed"] == sorted([*self.open, *self.back])


TestSchedule = Schedule.TestCase
TestSchedule.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(length=st.integers(1, 20), seed=st.integers(0, 100), epochs=st.integers(1, 3))
def test_each_epoch_holds_every_task_once(length: int, seed: int, epochs: int) -> None:
    given_out = ids(TaskStream(source_of(length), seed=seed), length * epochs)
    for epoch in range(epochs):
        part = given_out[epoch * length : (epoch + 1) * length]
        assert sorted(part) == sorted(f"t{i}" for i in range(length))


def test_the_order_follows_the_seed_and_changes_with_the_epoch() -> None:
    first, again, other = (ids(TaskStream(source_of(20), seed=s), 40) for s in (1, 1, 2))
    assert first == again != other
    assert first[:20] != first[20:]


def test_an_endless_source_keeps_its_own_order() -> None:
    stream = TaskStream(GeneratedSource(lambda i: Task(f"g{i}")), seed=5)
    assert ids(stream, 4) == ["g0", "g1", "g2", "g3"]


def test_length_of_knows_the_endless() -> None:
    class Bare:
        def get(self, index: int) -> Task:
            return Task(str(index))

    assert length_of(source_of(3)) == 3
    assert length_of(GeneratedSource(lambda i: Task(str(i)))) is None
    assert length_of(Bare()) is None  # type: ignore[arg-type]


def test_a_quarantined_task_is_passed_over_also_after_a_restart() -> None:
    stream = TaskStream(source_of(3), seed=0)
    ticket, _ = stream.take()
    stream.give_back(ticket)
    bad = stream.task_at(ticket).id
    stream.skip(bad)
    later = TaskStream(source_of(3), seed=0)
    later.restore(json.loads(json.dumps(stream.state())))
    for one in (stream, later):
        assert Counter(ids(one, 20))[bad] == 0
        assert one.quarantined == (bad,)


def test_when_every_task_is_quarantined_the_run_is_told() -> None:
    stream = TaskStream(source_of(2), seed=0)
    stream.skip("t0")
    stream.skip("t1")
    with pytest.raises(SuiteStarved, match="every task is quarantined \\(2: t0, t1"):
        stream.take()


def test_settling_what_is_not_outstanding_is_refused() -> None:
    stream = TaskStream(source_of(2), seed=0)
    ticket, _ = stream.take()
    stream.consume(ticket)
    for settle in (stream.consume, stream.give_back):
        with pytest.raises(ValueError, match="ticket 0 is not outstanding"):
            settle(ticket)


@pytest.mark.parametrize(("length", "seed", "name"), [(4, 0, "length"), (3, 1, "seed")])
def test_a_state_of_another_order_is_refused(length: int, seed: int, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"cursor has {name}"):
        TaskStream(source_of(length), seed=seed).restore(TaskStream(source_of(3), seed=0).state())


def test_an_empty_source_and_a_doubled_id_are_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        TaskStream(source_of(0), seed=0)
    with pytest.raises(UsageError, match="'a' comes more than once"):
        ListSource([Task("a"), Task("a")])


def test_a_curriculum_learns_in_the_order_of_the_tickets_whoever_is_consumed_first() -> None:
    seen = []
    for order in ([0, 1, 2], [2, 0, 1]):
        curriculum = Rotating()
        stream = TaskStream(source_of(5), seed=0, curriculum=curriculum)
        taken = [stream.take()[0] for _ in range(3)]
        for place in order:
            stream.consume(taken[place], [float(place)])
        assert not curriculum.seen, "not before the step is over"
        stream.learn()
        seen.append(curriculum.seen)
    assert seen[0] == seen[1] == [[0, 0.0], [3, 1.0], [1, 2.0]]


def test_what_was_set_aside_tells_a_curriculum_nothing_and_is_not_given_again() -> None:
    curriculum = Rotating()
    stream = TaskStream(source_of(3), seed=0, curriculum=curriculum)
    ticket, task = stream.take()
    stream.skip(task.id)
    stream.consume(ticket)
    stream.learn()
    assert not curriculum.seen
    with pytest.raises(SuiteStarved):  # this one gives nothing but multiples of 3
        stream.take()


def test_a_curriculum_that_leaves_the_source_is_named() -> None:
    curriculum = Rotating()
    curriculum.next_index = lambda cursor, length: 9  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"Rotating.next_index gave 9; expected one of range\(3\)"):
        TaskStream(source_of(3), seed=0, curriculum=curriculum).take()


def test_statistics_count_tickets() -> None:
    stream = TaskStream(source_of(5), seed=0)
    tickets = [stream.take()[0] for _ in range(3)]
    stream.consume(tickets[0])
    stream.give_back(tickets[1])
    assert stream.statistics() == {"taken": 3, "outstanding": 1, "returned": 1, "quarantined": 0}
