"""The loop a run goes on."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tunix_core.run.loop import RARITY, CalmCollector, run_on_loop


def test_it_gives_what_the_main_coroutine_gives_and_raises_what_it_raises() -> None:
    async def main(value: int) -> int:
        await asyncio.sleep(0)
        return 1 // value

    assert run_on_loop(main(1)) == 1
    with pytest.raises(ZeroDivisionError):
        run_on_loop(main(0))


def test_the_collector_is_calm_inside_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), CalmCollector():
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_a_cycle_of_new_objects_is_found_and_an_old_one_once_a_look_at_everything_is_due() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # so that a look takes a second
        return now[0]

    with CalmCollector(clock) as collector:
        new, old = Cycle(), Cycle()
        gone = [weakref.ref(new), weakref.ref(old)]
        del new
        kept = [[] for _ in range(20_000)]  # enough new ones for a look at them
        assert gone[0]() is None and gone[1]() is not None
        del old
        kept += [[] for _ in range(20_000)]
        assert not collector.look() and gone[1]() is not None, "a look at everything is dear"
        now[0] += RARITY
        assert collector.look() and gone[1]() is None
        assert not collector.look() and len(kept) == 40_000
