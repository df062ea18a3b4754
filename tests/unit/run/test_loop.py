"""The loop a run goes on."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tunix_core.run.loop import GROWTH_BYTES, LOOK_S, CalmCollector, run_on_loop
from tunix_core.testing.clock import run


def test_it_gives_what_the_main_coroutine_gives_and_raises_what_it_raises() -> None:
    async def main(value: int) -> int:
        await asyncio.sleep(0)
        return 1 // value

    assert run_on_loop(main(1)) == 1
    with pytest.raises(ZeroDivisionError):
        run_on_loop(main(0))


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_the_collector_looks_only_once_memory_has_grown_and_is_as_before_afterwards() -> None:
    held = [1 << 30]

    async def main() -> None:
        with pytest.raises(KeyError), CalmCollector(lambda: held[0]):
            lost = Cycle()
            gone = weakref.ref(lost)
            del lost
            kept = [[] for _ in range(100_000)]
            await asyncio.sleep(3 * LOOK_S)
            assert gone() is not None and kept, "nothing has grown"
            held[0] += GROWTH_BYTES + 1
            await asyncio.sleep(LOOK_S)
            assert gone() is None
            another = Cycle()
            gone = weakref.ref(another)
            del another
            await asyncio.sleep(LOOK_S)
            assert gone() is not None, "it has not grown since"
            raise KeyError

    run(main())
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_where_memory_is_not_told_the_collector_stays_as_it_was() -> None:
    async def main() -> None:
        with CalmCollector(lambda: None):
            assert gc.isenabled() and gc.get_freeze_count() == 0

    run(main())
    assert gc.isenabled()
