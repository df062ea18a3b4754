"""The loop a run goes on."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tunix_core.run.loop import calm_collector, run_on_loop


def test_it_gives_what_the_main_coroutine_gives_and_raises_what_it_raises() -> None:
    async def main(value: int) -> int:
        await asyncio.sleep(0)
        return 1 // value

    assert run_on_loop(main(1)) == 1
    with pytest.raises(ZeroDivisionError):
        run_on_loop(main(0))


def test_the_collector_is_calm_inside_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), calm_collector():
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0
