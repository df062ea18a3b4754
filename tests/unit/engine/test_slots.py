"""What the host knows of the slots: which chunks of their prefixes are computed next."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.contracts import GenerateRequest, Sampling
from tunix_core.engine.requests import Job
from tunix_core.engine.slots import SlotTable
from tunix_core.engine.steps import Sizes

CHUNK, ROWS = 8, 4


def table_of(prompts: list[int]) -> tuple[SlotTable, list[int]]:
    """A table with a request of each length, and their slots."""
    table = SlotTable(Sizes(slots=8, pieces=(64,), chunk=CHUNK, rows=(1, ROWS), steps=4, blocks=8), 64)

    def job(length: int) -> Job:
        tokens = np.arange(length, dtype=np.int32)
        nobody: Any = None
        return Job(GenerateRequest(tokens, Sampling(), seed=0, max_tokens=1), nobody, nobody, tokens[:-1], [])

    return table, [table.admit(job(length), 0) for length in prompts]


def calls_of(table: SlotTable) -> list[list[tuple[int, int]]]:
    """Fills everything: of each call the (slot, start) of its rows."""
    calls = []
    while table.filling.any():
        slots, starts = table.to_fill(CHUNK, ROWS)
        calls.append(list(zip(slots.tolist(), starts.tolist(), strict=True)))
        table.fill(slots, starts + CHUNK)
    return calls


def test_a_long_prompt_has_the_rows_that_shorter_ones_leave() -> None:
    table, (long, two, _, one) = table_of([41, 14, 1, 6])
    assert calls_of(table) == [
        [(long, 0), (two, 0), (one, 0), (long, 8)],
        [(long, 16), (two, 8), (long, 24), (long, 32)],
    ]


@given(st.lists(st.integers(1, 63), min_size=1, max_size=8))
def test_every_chunk_is_computed_once_and_no_row_is_left_empty_before_the_last_call(prompts: list[int]) -> None:
    table, slots = table_of(prompts)
    calls = calls_of(table)
    wanted = [(slot, at) for slot, length in zip(slots, prompts, strict=True) for at in range(0, length - 1, CHUNK)]
    assert sorted(chunk for call in calls for chunk in call) == sorted(wanted)
    assert all(len(call) == ROWS for call in calls[:-1])
    assert [table.filled[slot] for slot in slots] == [length - 1 for length in prompts]
    assert all(table.decoding[slot] for slot in slots)
