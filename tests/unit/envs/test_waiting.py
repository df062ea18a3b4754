"""Calls with the same limit wait on one timer, each for its own time."""

from __future__ import annotations

import asyncio

import pytest

from tunix_core.envs.waiting import Limit, Tally, bounded
from tunix_core.errors import EnvError
from tunix_core.profiling import Watchdog
from tunix_core.testing.clock import JumpingLoop, run


def test_each_call_has_its_own_time_on_the_shared_timer() -> None:
    limit, ended = Limit(5.0, "timeouts.step_s"), dict[str, float]()

    async def call(name: str, begins_s: float, takes_s: float) -> None:
        await asyncio.sleep(begins_s)
        try:
            await bounded(asyncio.ensure_future(asyncio.sleep(takes_s)), limit, "env.step", Tally())
        except EnvError as error:
            assert error.kind == "env_timeout" and "env.step (timeouts.step_s) took longer than 5 s" in str(error)
            name = f"{name} too late"
        ended[name] = asyncio.get_running_loop().time()

    async def main() -> None:
        await asyncio.gather(call("a", 0, 9), call("b", 1, 2), call("c", 2, 9), call("d", 2, 1), call("e", 6, 4))

    run(main())
    assert ended == {"b": 3.0, "d": 3.0, "a too late": 5.0, "c too late": 7.0, "e": 10.0}


@pytest.mark.parametrize(("takes_s", "ends_at", "in_time"), [(3, 8.0, True), (10, 10.0, True), (30, 11.0, False)])
@pytest.mark.parametrize("begins_s", [1, 2])
def test_who_waits_while_another_holds_the_loop_up_does_not_pay_for_it(
    takes_s: float, ends_at: float, in_time: bool, begins_s: int
) -> None:
    async def main() -> tuple[float, bool]:
        limit, loop = Limit(5.0, "timeouts.step_s"), asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        dog = Watchdog(clock=loop.time)
        dog.start()
        loop.call_later(begins_s, loop.jump, 6.0)  # as code that blocks does
        try:
            await bounded(asyncio.ensure_future(asyncio.sleep(takes_s)), limit, "env.step", Tally())
        except EnvError:
            return loop.time(), False
        finally:
            dog.stop()
        return loop.time(), True

    ended_at, ended_in_time = run(main())
    assert ended_in_time == in_time
    assert ended_at == pytest.approx(ends_at if begins_s == 2 or takes_s != 3 else 7.0, abs=0.05)


@pytest.mark.parametrize(("begins_s", "held", "seconds"), [(2.8, 2.7, 0.3), (10.3, 6.000001, 0.7), (28.3, 2.7, 5.0)])
def test_a_rounding_error_is_not_waited_for(
    begins_s: float, held: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < begins_s - held + seconds - (begins_s + seconds - held) < 1e-12, "with this, time would stand still"
    monkeypatch.setattr("tunix_core.envs.waiting.held_s", lambda: held)

    async def main() -> float:
        await asyncio.sleep(begins_s)
        with pytest.raises(EnvError):
            limit = Limit(seconds, "timeouts.step_s")
            await bounded(asyncio.ensure_future(asyncio.sleep(9)), limit, "env.step", Tally())
        return asyncio.get_running_loop().time()

    assert run(main()) == begins_s + seconds


def test_a_limit_that_is_closed_leaves_no_timer() -> None:
    async def main() -> float:
        limit = Limit(50.0, "timeouts.step_s")
        await bounded(asyncio.ensure_future(asyncio.sleep(1)), limit, "env.step", Tally())
        limit.close()
        limit.close()
        return asyncio.get_running_loop().time()

    assert run(main(), timeout_s=2.0) == 1.0


def test_who_is_cancelled_cancels_the_call() -> None:
    async def main() -> None:
        limit, work = Limit(50.0, "timeouts.step_s"), asyncio.ensure_future(asyncio.sleep(9))
        waiting = asyncio.ensure_future(bounded(work, limit, "env.step", Tally()))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert work.cancelled()
        await bounded(asyncio.ensure_future(asyncio.sleep(1)), limit, "env.step", Tally())

    run(main())
